// Package fence writes the fencing token of a lease to the Kubernetes objects that a lock guards, so that the API server
// refuses the write of a process that lost its lease (docs/fencing-kubernetes.md).
//
//	config.ContentType = "application/json"
//	config.Wrap(func(base http.RoundTripper) http.RoundTripper {
//		return &fence.Transport{Base: base, Token: token, Stale: stop}
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
	// ErrNoToken: the process has no lease, so the write was not sent.
	ErrNoToken = errors.New("fence: no fencing token: this process has no lease")
	// ErrUnstampable: the token cannot be added to the request, so it was not sent.
	ErrUnstampable = errors.New("fence: the fencing token cannot be added to the request")
)

// Transport adds the fencing token to each write of an object of a namespace. Use a client of its own for the guarded
// objects: it sends no write without a lease, and it writes the annotation to unguarded objects, too.
//
// A deletion becomes two requests: a patch of the annotation, and the deletion of the resourceVersion that the patch
// returned. Writes of subresources are sent unchanged, but not without a lease: PUT them with the resourceVersion
// of a write before.
type Transport struct {
	// Base sends the requests; nil is [http.DefaultTransport].
	Base http.RoundTripper
	// Token returns the token of the current lease; false: there is none. It is called for each attempt.
	Token func() (int64, bool)
	// Stale is called, if it is not nil, when the API server has refused a token because a newer one exists. The lease
	// has ended: stop its work. The caller of the write receives the API server's answer, 403.
	Stale func(token int64)
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
	body, err := read(request.Body)
	if err != nil {
		return nil, err
	}
	switch target(request) {
	case collection:
		return nil, fmt.Errorf("%w: a deletion of a collection; delete each object", ErrUnstampable)
	case object:
		if request.Method == http.MethodDelete {
			return t.delete(request, body)
		}
		return t.write(request, func(token int64) ([]byte, error) {
			return stamped(body, request.Header.Get("Content-Type"), token)
		})
	default:
		return t.write(request, func(int64) ([]byte, error) { return body, nil })
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// write sends a request until the API server has seen the grant of its token.
func (t *Transport) write(request *http.Request, body func(token int64) ([]byte, error)) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(request.Context(), repeatFor)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		token, ok := t.Token()
		if !ok {
			return nil, ErrNoToken
		}
		content, err := body(token)
		if err != nil {
			return nil, err
		}
		response, err := t.base().RoundTrip(withBody(request, content))
		if err != nil {
			return nil, err
		}
		refusal, err := refusalOf(response)
		if err != nil {
			return nil, err
		}
		if strings.Contains(refusal, "stale fencing token") && t.Stale != nil {
			t.Stale(token)
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
	preconditions, err := child(options, "preconditions")
	if err != nil {
		return nil, err
	}
	patch := request.Clone(request.Context())
	patch.Method = http.MethodPatch
	patch.URL.RawQuery = ""
	patch.Header.Set("Content-Type", mergePatch)
	patch.Header.Set("Accept", "application/json")
	response, err := t.write(patch, func(token int64) ([]byte, error) {
		metadata := map[string]any{"annotations": map[string]string{annotation: fmt.Sprint(token)}}
		// If the caller names a version, the object must still have it.
		if version := preconditions["resourceVersion"]; version != nil {
			metadata["resourceVersion"] = version
		}
		return json.Marshal(map[string]any{"metadata": metadata})
	})
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	content, err := read(response.Body)
	if err != nil {
		return nil, err
	}
	var written struct {
		Metadata struct {
			ResourceVersion json.RawMessage `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(content, &written); err != nil {
		return nil, fmt.Errorf("fence: the API server's answer is not JSON: %w", err)
	}
	preconditions["resourceVersion"] = written.Metadata.ResourceVersion
	options["preconditions"] = raw(preconditions)
	if options["kind"] == nil {
		options["kind"], options["apiVersion"] = raw("DeleteOptions"), raw("v1")
	}
	deletion := request.Clone(request.Context())
	deletion.Header.Set("Content-Type", "application/json")
	return t.write(deletion, func(int64) ([]byte, error) { return json.Marshal(options) })
}

type kind int

const (
	other kind = iota
	object
	collection
)

// target says what a write is for: an object of a namespace, several, or something else.
func target(request *http.Request) kind {
	_, path, found := strings.Cut(request.URL.Path, "/namespaces/")
	if !found {
		return other
	}
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
	if contentType == "application/json-patch+json" {
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
