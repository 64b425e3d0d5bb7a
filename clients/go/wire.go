package leasehold

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// defaultURL is where a sidecar listens unless its pod says otherwise.
	defaultURL = "http://127.0.0.1:7373"
	// callTimeout is how long a call may take that does not wait for a lock. The sidecar answers a
	// release after two seconds at most, and tries other writes for about five.
	callTimeout = 10 * time.Second
	// A release that got no answer is repeated after this time.
	releaseTimeout = 3 * time.Second
	// An answer of a sidecar is some kilobytes at most.
	largestAnswer = 1 << 20
	// Renewals of many leases share this many connections, and open more while more are under way.
	idleConnections = 4
)

// sidecar is the HTTP API of one sidecar.
type sidecar struct {
	base    string
	address string
	http    http.Client
}

func newSidecar(address string) (*sidecar, error) {
	// An empty Proxy uses none: the sidecar is on localhost.
	transport := &http.Transport{MaxIdleConnsPerHost: idleConnections, IdleConnTimeout: time.Minute}
	made := &sidecar{address: address, http: http.Client{
		Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}}
	if path, isUnix := strings.CutPrefix(address, "unix://"); isUnix {
		if !strings.HasPrefix(path, "/") {
			return nil, fmt.Errorf("leasehold: %q must have an absolute path: unix:///PATH", address)
		}
		made.base = "http://localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
		return made, nil
	}
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "http" || parsed.Host == "" || strings.Trim(parsed.Path, "/") != "" ||
		parsed.RawQuery != "" || parsed.User != nil {
		return nil, fmt.Errorf("leasehold: %q must be http://HOST:PORT or unix:///PATH", address)
	}
	made.base = "http://" + parsed.Host
	return made, nil
}

// send sends a request, and returns an answer with status 200 to 299, or an *Error. The caller closes
// its body.
func (s *sidecar) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, s.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "leasehold-go/"+Version)
	answer, err := s.http.Do(request)
	if err != nil {
		return nil, s.silent(ctx, err)
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, largestAnswer))
	if err != nil {
		return nil, s.silent(ctx, err)
	}
	return nil, problemOf(answer.StatusCode, said)
}

// call sends a request, and reads its answer into a value.
func (s *sidecar) call(ctx context.Context, method, path string, body, into any) error {
	answer, err := s.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, largestAnswer))
	if err != nil {
		return s.silent(ctx, err)
	}
	if into == nil {
		return nil
	}
	if json.Unmarshal(said, into) != nil {
		return s.stranger()
	}
	return nil
}

// silent describes that no answer came.
func (s *sidecar) silent(ctx context.Context, err error) *Error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	silence := noAnswer("no answer from %s: %v; start the sidecar, or set LEASEHOLD_URL to where it is", s.address, err)
	var failed *net.OpError
	silence.isUnsent = errors.As(err, &failed) && failed.Op == "dial"
	return silence
}

// stranger describes that another server answered.
func (s *sidecar) stranger() *Error {
	return &Error{Kind: ErrRefused, Code: "not_a_sidecar", Detail: fmt.Sprintf(
		"what answers at %s is not a Leasehold sidecar; set LEASEHOLD_URL to where it is", s.address)}
}

// event is a server-sent event.
type event struct {
	name string
	data []byte
}

// stream opens a stream of events. Cancelling the context closes its connection.
func (s *sidecar) stream(ctx context.Context, path string, body any) (*events, error) {
	answer, err := s.send(ctx, http.MethodPost, path, body)
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")); kind != "text/event-stream" {
		answer.Body.Close()
		return nil, s.stranger()
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, largestAnswer)
	return &events{sidecar: s, ctx: ctx, body: answer.Body, lines: lines}, nil
}

type events struct {
	sidecar *sidecar
	ctx     context.Context
	body    io.Closer
	lines   *bufio.Scanner
}

// next returns the next event, or an *Error if the stream has ended.
func (e *events) next() (event, error) {
	var found event
	for e.lines.Scan() {
		name, value, _ := strings.Cut(e.lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case name == "event":
			found.name = value
		case name == "data":
			found.data = append(found.data, value...)
		case e.lines.Text() == "" && found.name != "":
			return found, nil
		case e.lines.Text() == "":
			found = event{}
		}
	}
	err := e.lines.Err()
	if err == nil {
		err = io.EOF
	}
	return event{}, e.sidecar.silent(e.ctx, err)
}

func (e *events) close() {
	e.body.Close()
}
