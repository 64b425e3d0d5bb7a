// Package fence writes the fencing token of a lease to the Kubernetes objects that a lock guards, so that the API server
// refuses the write of a process that lost its lease (docs/fencing-kubernetes.md).
//
//	config.ContentType = "application/json"
//	config.Wrap(func(base http.RoundTripper) http.RoundTripper {
//		return fence.New(base, token, stop)
//	})
//
// It knows no client-go: it works for each client whose requests are JSON.
package fence

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"
)

const (
	annotation = "leasehold.dev/fencing-token"
	policy     = "'leasehold-fenced-objects'"
	mergePatch = "application/merge-patch+json"
	// The API server may not have seen the grant of a new lease. After this time, the token is of another lock.
	repeatFor  = 10 * time.Second
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
	refusalMax = 1 << 20
)

var (
	// ErrNoToken: the lease of the transport has ended, so the write was not sent.
	ErrNoToken = errors.New("fence: the lease of this client has ended, or there was none; create a client for each lease")
	// ErrUnstampable: the token cannot be added to the request, so it was not sent.
	ErrUnstampable = errors.New("fence: the fencing token cannot be added to the request")
)

// Transport adds the fencing token of one lease to each write of an object of a namespace. Use a client of its own for the
// guarded objects: it sends no write without a lease, and it writes the annotation to unguarded objects, too.
//
// A deletion becomes two requests: a patch of the annotation, which needs the right to patch, and the deletion of the
// resourceVersion that the patch returned. The API server answers 409 if the object has changed in between: repeat the
// deletion. Writes of subresources are sent unchanged, but not without a lease: PUT them with the resourceVersion of a
// write before.
type Transport struct {
	next  http.RoundTripper
	token func() (int64, bool)
	stale func(token int64)
	lease int64
}

// New returns a transport for the current lease. Create one for each lease, when it begins: a write that was decided in
// an earlier one must not be sent with a newer token.
//
// The requests are sent by base; nil is [http.DefaultTransport]. token returns the token of the current lease; false:
// there is none. stale is called, if it is not nil, when the API server has refused the token because a newer one exists:
// the lease has ended. It must return at once, so cancel a context. The caller of the write receives the API server's
// answer, 403.
func New(base http.RoundTripper, token func() (int64, bool), stale func(token int64)) *Transport {
	lease, _ := token()
	return &Transport{next: base, token: token, stale: stale, lease: lease}
}

// RoundTrip sends a request, a write with the token.
//
// It repeats a write only while the API server answers 422 because it has not seen the grant of a new lease, at most
// for ten seconds, and until the request's context ends.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	switch request.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return t.base().RoundTrip(request)
	}
	what := target(request)
	if !t.leads() {
		discard(request.Body)
		return nil, ErrNoToken
	}
	if what == other {
		return t.base().RoundTrip(request)
	}
	body, err := read(request.Body)
	switch {
	case err != nil:
		return nil, err
	case what == collection:
		return nil, fmt.Errorf("%w: a deletion of a collection; delete each object", ErrUnstampable)
	case request.Method == http.MethodDelete:
		return t.delete(request, body)
	}
	content, err := stamped(body, request.Header.Get("Content-Type"), t.lease)
	if err != nil {
		return nil, err
	}
	return t.write(request, content)
}

// leads says whether the lease that the transport was created for is the current one.
func (t *Transport) leads() bool {
	token, ok := t.token()
	return ok && token == t.lease
}

func (t *Transport) base() http.RoundTripper {
	if t.next == nil {
		return http.DefaultTransport
	}
	return t.next
}

// write sends a request until the API server has seen the grant of its token.
func (t *Transport) write(request *http.Request, content []byte) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(request.Context(), repeatFor)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if !t.leads() {
			return nil, ErrNoToken
		}
		response, err := t.base().RoundTrip(withBody(request, content))
		if err != nil {
			return nil, err
		}
		refusal, err := refusalOf(response)
		if err != nil {
			return nil, err
		}
		if strings.Contains(refusal, "stale fencing token") {
			if t.stale != nil {
				t.stale(t.lease)
			}
			return response, nil
		}
		if !strings.Contains(refusal, "repeat the write") {
			return response, nil
		}
		select {
		case <-ctx.Done():
			return response, nil
		case <-time.After(pause):
			response.Body.Close()
		}
	}
}

// delete writes the token, and deletes what it wrote.
func (t *Transport) delete(request *http.Request, body []byte) (*http.Response, error) {
	options, err := parsed(body, request.Header.Get("Content-Type"))
	if err != nil {
		return nil, err
	}
	if err := deletable(request, options); err != nil {
		return nil, err
	}
	preconditions, err := child(options, "preconditions")
	if err != nil {
		return nil, err
	}
	metadata := map[string]any{"annotations": map[string]string{annotation: fmt.Sprint(t.lease)}}
	// If the caller names a version, the object must still have it.
	if version := preconditions["resourceVersion"]; version != nil {
		metadata["resourceVersion"] = version
	}
	patch := request.Clone(request.Context())
	patch.Method = http.MethodPatch
	patch.URL.RawQuery = ""
	patch.Header.Set("Content-Type", mergePatch)
	patch.Header.Set("Accept", "application/json")
	response, err := t.write(patch, raw(map[string]any{"metadata": metadata}))
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	content, err := read(response.Body)
	if err != nil {
		return nil, err
	}
	var written struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(content, &written); err != nil {
		return nil, fmt.Errorf("fence: nothing was deleted, because the API server's answer is not JSON: %w", err)
	}
	if written.Metadata.ResourceVersion == "" {
		return nil, errors.New("fence: nothing was deleted, because the API server's answer has no resourceVersion")
	}
	preconditions["resourceVersion"] = raw(written.Metadata.ResourceVersion)
	options["preconditions"] = raw(preconditions)
	deletion := request.Clone(request.Context())
	deletion.Header.Set("Content-Type", "application/json")
	return t.write(deletion, raw(options))
}

// deletable refuses what a deletion in two requests would change: the first one writes, and the API server ignores
// options in the query of a request with a body.
func deletable(request *http.Request, options map[string]json.RawMessage) error {
	dryRun := options["dryRun"]
	if text := string(dryRun); dryRun != nil && text != "null" && text != "[]" {
		return fmt.Errorf("%w: a dry run of a deletion, which would write the token", ErrUnstampable)
	}
	for _, option := range []string{"dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"} {
		if request.URL.Query().Has(option) {
			return fmt.Errorf("%w: %s in the query of a deletion; send it in the body", ErrUnstampable, option)
		}
	}
	return nil
}

type kind int

const (
	other kind = iota
	object
	collection
)

// ofNamespace finds the path below a namespace. The last one: a proxy may have the API server below a namespace of its own.
var ofNamespace = regexp.MustCompile(`^(?:.*/)?(?:api|apis/[^/]+)/[^/]+/namespaces/(.+)$`)

// target says what a write is for: an object of a namespace, several, or something else.
func target(request *http.Request) kind {
	found := ofNamespace.FindStringSubmatch(request.URL.Path)
	if found == nil {
		return other
	}
	path := found[1]
	// The namespace, the plural, the name and the subresource.
	switch parts := len(strings.Split(strings.Trim(path, "/"), "/")); {
	case request.Method == http.MethodPost && parts == 2:
		return object
	case request.Method == http.MethodDelete && parts == 2:
		return collection
	case request.Method != http.MethodPost && parts == 3:
		return object
	default:
		return other
	}
}

// stamped returns an object or a patch with the annotation.
func stamped(body []byte, contentType string, token int64) ([]byte, error) {
	value := fmt.Sprint(token)
	if kind, _, _ := strings.Cut(contentType, ";"); kind == "application/json-patch+json" {
		var operations []json.RawMessage
		if err := json.Unmarshal(body, &operations); err != nil {
			return nil, fmt.Errorf("%w: the JSON patch is not a list: %w", ErrUnstampable, err)
		}
		// The last one counts. A merge patch is needed while the object has no annotations.
		path := "/metadata/annotations/" + strings.ReplaceAll(annotation, "/", "~1")
		add := map[string]string{"op": "add", "path": path, "value": value}
		return json.Marshal(append(operations, raw(add)))
	}
	document, err := parsed(body, contentType)
	if err != nil {
		return nil, err
	}
	metadata, err := child(document, "metadata")
	if err != nil {
		return nil, err
	}
	annotations, err := child(metadata, "annotations")
	if err != nil {
		return nil, err
	}
	annotations[annotation] = raw(value)
	metadata["annotations"] = raw(annotations)
	document["metadata"] = raw(metadata)
	return json.Marshal(document)
}

// parsed returns the fields of a JSON object; none if there is no body.
func parsed(body []byte, contentType string) (map[string]json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if len(body) == 0 {
		return fields, nil
	}
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, fmt.Errorf("%w: a body of the type %q that is not a JSON object; for client-go, set ContentType to "+
			"application/json in the rest.Config", ErrUnstampable, contentType)
	}
	return fields, nil
}

// child returns the fields of an object in an object; none if it is missing or null.
func child(of map[string]json.RawMessage, name string) (map[string]json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if of[name] == nil {
		return fields, nil
	}
	if err := json.Unmarshal(of[name], &fields); err != nil {
		return nil, fmt.Errorf("%w: %s is not a JSON object", ErrUnstampable, name)
	}
	if fields == nil {
		fields = map[string]json.RawMessage{}
	}
	return fields, nil
}

// raw returns a value as JSON. Values of strings and JSON always have one.
func raw(value any) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}

func discard(body io.ReadCloser) {
	if body != nil {
		body.Close()
	}
}

func read(body io.ReadCloser) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	defer body.Close()
	return io.ReadAll(body)
}

// withBody returns a copy: a transport must not change the request of its caller.
func withBody(request *http.Request, body []byte) *http.Request {
	request = request.Clone(request.Context())
	request.Header.Del("Content-Length")
	request.ContentLength = int64(len(body))
	request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	request.Body, _ = request.GetBody()
	return request
}

// refusalOf returns the text of an answer with which the policy has refused a write, and leaves the body
// readable.
func refusalOf(response *http.Response) (string, error) {
	if response.StatusCode != http.StatusForbidden && response.StatusCode != http.StatusUnprocessableEntity {
		return "", nil
	}
	body := response.Body
	start, err := io.ReadAll(io.LimitReader(body, refusalMax))
	if err != nil {
		body.Close()
		return "", err
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), body), body}
	if text := string(start); strings.Contains(text, policy) {
		return text, nil
	}
	return "", nil
}
