package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The conformance suite tests the client with a sidecar. These tests have a server in its place that
// does what a sidecar does not do on demand.

// request is what the server has read.
type request struct {
	method, path string
	body         map[string]any
}

// fake is a client, and the server that it talks to.
type fake struct {
	*Client
	mutex    sync.Mutex
	requests []request
}

func serve(t *testing.T, answer func(http.ResponseWriter, request)) *fake {
	t.Helper()
	made := &fake{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		read := request{method: r.Method, path: r.URL.Path}
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &read.body)
		made.mutex.Lock()
		made.requests = append(made.requests, read)
		made.mutex.Unlock()
		answer(w, read)
	}))
	t.Cleanup(server.CloseClientConnections)
	client, err := New(server.URL, WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	made.Client = client
	return made
}

// eventually waits until a request fits.
func (f *fake) eventually(t *testing.T, what string, fits func(request) bool) {
	t.Helper()
	for range 1000 {
		f.mutex.Lock()
		for _, read := range f.requests {
			if fits(read) {
				f.mutex.Unlock()
				return
			}
		}
		f.mutex.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no %s", what)
}

const granted = `{"resource":"r","leaseId":"l","fencingToken":7,"ownerId":"o","validForMs":60000,"renewAfterMs":20000}`

// stream answers with packets of a stream of events, and leaves it open.
func stream(w http.ResponseWriter, packets ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, packet := range packets {
		fmt.Fprint(w, packet)
		w.(http.Flusher).Flush()
		time.Sleep(10 * time.Millisecond)
	}
}

func TestServerThatIsNoSidecarIsRefused(t *testing.T) {
	for _, said := range []string{"<html>hello</html>", "{}", `{"leaseId":"l"}`, ""} {
		client := serve(t, func(w http.ResponseWriter, _ request) { fmt.Fprint(w, said) })
		for _, options := range [][]Option{nil, {TTL(time.Minute)}} {
			_, _, err := client.Lock(t.Context(), "r", options...)
			var of *Error
			if !errors.As(err, &of) || of.Code != "not_a_sidecar" || !errors.Is(err, ErrRefused) {
				t.Errorf("%q: %v", said, err)
			}
		}
	}
	client := serve(t, func(w http.ResponseWriter, _ request) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusFound)
	})
	if _, _, err := client.Lock(t.Context(), "r"); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}

func TestAddressesAreChecked(t *testing.T) {
	for _, address := range []string{"localhost:7373", "https://localhost", "unix://socket", "http://h/path", "http://", ":"} {
		if _, err := New(address); err == nil || !strings.Contains(err.Error(), "must") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestEnvironmentsProxyIsNotUsed(t *testing.T) {
	// The suite cannot see it: net/http uses no proxy for localhost.
	client, err := New("http://leasehold:7373")
	if err != nil || client.sidecar.http.Transport.(*http.Transport).Proxy != nil {
		t.Error(err)
	}
}

func TestCancelledCallerSendsNothing(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ request) { fmt.Fprint(w, granted) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, options := range [][]Option{nil, {TTL(time.Minute)}} {
		if _, _, err := client.Lock(ctx, "r", options...); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if len(client.requests) != 0 {
		t.Error(client.requests)
	}
}

func TestGrantWithoutAnAnswerIsGivenBackAfterAnotherAnswer(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	var count atomic.Int32
	client := serve(t, func(w http.ResponseWriter, read request) {
		switch count.Add(1) {
		case 1: // It was granted, and the answer gets lost.
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
			leave()
		default:
			fmt.Fprint(w, granted)
		}
	})
	if _, _, err := client.Lock(ctx, "r", TTL(time.Minute)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	client.eventually(t, "release", func(read request) bool { return read.method == http.MethodDelete })
}

func TestEventsMayComeInPieces(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, read request) {
		if read.path == "/v1/locks/hold" {
			euro := `{"reason":"person_asked","actor":"ä","message":"€"}`
			stream(w, ": a comment\ndata: without a name\n\nevent: waiting\ndata: {}\n\nevent: acqu", "ired\ndata: "+granted+"\n", "\n",
				"event: of-the-future\ndata: {\"leaseId\":\"l\"}\n\nevent: release-requested\ndata: "+euro[:45], euro[45:]+"\n\n",
				"event: lost\r\ndata: {\"reason\":\"force_released\",\"detail\":\"why\"}\r\n\r\n")
		}
	})
	lease, ctx, err := client.Lock(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	<-lease.ReleaseRequested()
	if asked := lease.ReleaseRequest(); asked.Message != "€" || asked.Actor != "ä" {
		t.Error(asked)
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, ErrLost) || lease.Reason() != "force_released" {
		t.Error(cause, lease)
	}
	if err := lease.Release(ctx); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
}

func TestCallerThatLeavesHoldsNothing(t *testing.T) {
	ctx, leave := context.WithCancelCause(t.Context())
	left := errors.New("left")
	var first sync.Once
	client := serve(t, func(w http.ResponseWriter, read request) {
		isFirst := false
		first.Do(func() { isFirst = true })
		switch {
		case isFirst:
			leave(left)
			time.Sleep(100 * time.Millisecond)
		case read.method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		default:
			fmt.Fprint(w, granted)
		}
	})
	if _, _, err := client.Lock(ctx, "r", TTL(time.Minute)); !errors.Is(err, left) {
		t.Fatal(err)
	}
	client.eventually(t, "repetition", func(read request) bool {
		first := client.requests[0]
		return read.path == first.path && read.body["requestId"] == first.body["requestId"] && read.body["waitSeconds"] == 0.0
	})
	client.eventually(t, "release", func(read request) bool {
		return read.method == http.MethodDelete && read.path == "/v1/locks/l"
	})
}

func TestReleaseIsRepeatedUntilItIsAnswered(t *testing.T) {
	var count int
	client := serve(t, func(w http.ResponseWriter, read request) {
		if read.method != http.MethodDelete {
			fmt.Fprint(w, granted)
			return
		}
		if count++; count == 1 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	lease, ctx, err := client.Lock(t.Context(), "r", TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 10 {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := lease.Release(ctx); err != nil {
				t.Error(err)
			}
		}()
	}
	group.Wait()
	if count != 2 || lease.Reason() != "released" || ctx.Err() == nil {
		t.Error(count, lease, ctx.Err())
	}
}

func TestTransportSendsNothingAfterTheEnd(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ request) { fmt.Fprint(w, granted) })
	lease, ctx, err := client.Lock(t.Context(), "r", TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 1)
	guarded := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get(HeaderName)
	}))
	defer guarded.Close()
	writer := http.Client{Transport: lease.Transport(nil)}
	answer, err := writer.Get(guarded.URL)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if token := <-seen; token != "7" {
		t.Error(token)
	}
	_ = lease.Release(ctx)
	if _, err := writer.Get(guarded.URL); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
}

func TestDoReleasesAfterPanic(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ request) { fmt.Fprint(w, granted) })
	var held *Lease
	func() {
		defer func() { _ = recover() }()
		_ = client.Do(t.Context(), "r", func(_ context.Context, lease *Lease) error {
			held = lease
			panic("on purpose")
		}, TTL(time.Minute))
	}()
	if held.Reason() != "released" {
		t.Error(held)
	}
}
