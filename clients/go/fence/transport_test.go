package fence_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"leasehold.dev/go/leasehold/fence"
)

const (
	settings = "/api/v1/namespaces/team/configmaps/settings"
	refused  = `{"message":"configmaps \"settings\" is forbidden: ValidatingAdmissionPolicy 'leasehold-fenced-objects' ` +
		`with binding 'x' denied request: %s"}`
)

type sent struct {
	method, path, contentType, body string
}

// api answers with the given answers, then with 200, and keeps the requests.
type api struct {
	*httptest.Server
	requests []sent
	answers  []answer
}

type answer struct {
	status int
	body   string
}

func newAPI(t *testing.T, answers ...answer) *api {
	fake := &api{answers: answers}
	fake.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fake.requests = append(fake.requests, sent{r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), string(body)})
		next := answer{http.StatusOK, `{"metadata":{"resourceVersion":"42"}}`}
		if len(fake.answers) > 0 {
			next, fake.answers = fake.answers[0], fake.answers[1:]
		}
		w.WriteHeader(next.status)
		fmt.Fprint(w, next.body)
	}))
	t.Cleanup(fake.Close)
	return fake
}

func (a *api) send(t *testing.T, transport http.RoundTripper, method, path, contentType, body string) (int, string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, a.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text), nil
}

func leading(token int64) *fence.Transport {
	return fence.New(nil, func() (int64, bool) { return token, true }, nil)
}

func sameJSON(t *testing.T, got, want string) {
	t.Helper()
	var left, right any
	if err := errors.Join(json.Unmarshal([]byte(got), &left), json.Unmarshal([]byte(want), &right)); err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	if !reflect.DeepEqual(left, right) {
		t.Fatalf("%s instead of %s", got, want)
	}
}

func TestWritesCarryTheToken(t *testing.T) {
	const annotation = `"annotations":{"leasehold.dev/fencing-token":"7"}`
	const jsonPatch = `{"op":"add","path":"/metadata/annotations/leasehold.dev~1fencing-token","value":"7"}`
	for _, test := range []struct{ method, path, contentType, body, want string }{
		{"POST", "/api/v1/namespaces/team/configmaps", "application/json", `{"data":{"n":"1"}}`, `{"data":{"n":"1"},"metadata":{` + annotation + `}}`},
		{"PUT", settings, "application/json", `{"spec":12345678901234567890,"metadata":{"name":"settings","annotations":null}}`,
			`{"spec":12345678901234567890,"metadata":{"name":"settings",` + annotation + `}}`},
		// A reader that sends the object back has the annotation of another writer.
		{"PUT", settings, "", `{"metadata":{"annotations":{"leasehold.dev/fencing-token":"99","a":"b"}}}`,
			`{"metadata":{"annotations":{"leasehold.dev/fencing-token":"7","a":"b"}}}`},
		{"PATCH", settings, "application/merge-patch+json", `{}`, `{"metadata":{` + annotation + `}}`},
		{"PATCH", settings, "application/strategic-merge-patch+json", `{}`, `{"metadata":{` + annotation + `}}`},
		{"PATCH", settings + "?fieldManager=x", "application/apply-patch+yaml", `{"kind":"ConfigMap"}`, `{"kind":"ConfigMap","metadata":{` + annotation + `}}`},
		{"PATCH", settings, "application/json-patch+json", `[{"op":"remove","path":"/x"}]`, `[{"op":"remove","path":"/x"},` + jsonPatch + `]`},
		{"PATCH", settings, "application/json-patch+json; charset=utf-8", `[]`, `[` + jsonPatch + `]`},
		{"PUT", "/api/v1/namespaces/vc/services/https:vc:443/proxy" + settings, "application/json", `{}`, `{"metadata":{` + annotation + `}}`},
		{"PATCH", "/apis/example.com/stable/namespaces/team/widgets/w", "application/merge-patch+json", `{}`, `{"metadata":{` + annotation + `}}`},
		// A kind and a namespace with the name namespaces.
		{"PATCH", "/apis/servicebus.azure.com/v1api20211101/namespaces/team/namespaces/bus", "application/merge-patch+json", `{}`, `{"metadata":{` + annotation + `}}`},
		{"PUT", "/api/v1/namespaces/namespaces/configmaps/settings", "application/json", `{}`, `{"metadata":{` + annotation + `}}`},
		// These carry no annotation of the object.
		{"PUT", settings + "/status", "application/json", `{"status":{}}`, `{"status":{}}`},
		{"PATCH", "/api/v1/nodes/n", "application/merge-patch+json", `{}`, `{}`},
	} {
		fake := newAPI(t)
		if _, _, err := fake.send(t, leading(7), test.method, test.path, test.contentType, test.body); err != nil {
			t.Fatal(err)
		}
		request := fake.requests[0]
		if request.method != test.method || request.path != test.path {
			t.Fatalf("%+v", request)
		}
		sameJSON(t, request.body, test.want)
	}
}

func TestNoWriteIsSentWithoutALease(t *testing.T) {
	fake := newAPI(t)
	none := fence.New(nil, func() (int64, bool) { return 0, false }, nil)
	for _, method := range []string{"PUT", "PATCH", "DELETE"} {
		for _, path := range []string{settings, settings + "/status"} {
			if _, _, err := fake.send(t, none, method, path, "", "{}"); !errors.Is(err, fence.ErrNoToken) {
				t.Fatalf("%s %s: %v", method, path, err)
			}
		}
	}
	if _, _, err := fake.send(t, none, "GET", settings, "", ""); err != nil || len(fake.requests) != 1 {
		t.Fatalf("%v: %+v", err, fake.requests)
	}
}

func TestNoRequestIsSentThatCannotBeStamped(t *testing.T) {
	fake := newAPI(t)
	for _, test := range []struct{ method, path, contentType, body string }{
		{"PUT", settings, "application/vnd.kubernetes.protobuf", "k8s\x00"},
		{"PATCH", settings, "application/apply-patch+yaml", "kind: ConfigMap"},
		{"PATCH", settings, "application/json-patch+json", "{}"},
		{"PUT", settings, "application/json", `{"metadata":[]}`},
		{"DELETE", settings, "application/vnd.kubernetes.protobuf", "k8s\x00"},
		{"DELETE", "/apis/apps/v1/namespaces/team/deployments", "", ""},
		{"DELETE", settings, "application/json", `{"dryRun":["All"]}`},
		{"DELETE", settings + "?dryRun=All", "", ""},
		{"DELETE", settings + "?propagationPolicy=Orphan", "", ""},
	} {
		_, _, err := fake.send(t, leading(7), test.method, test.path, test.contentType, test.body)
		if !errors.Is(err, fence.ErrUnstampable) {
			t.Fatalf("%+v: %v", test, err)
		}
	}
	if len(fake.requests) != 0 {
		t.Fatalf("%+v", fake.requests)
	}
}

func TestDeletionIsOfTheVersionThatWasStamped(t *testing.T) {
	fake := newAPI(t)
	body := `{"propagationPolicy":"Foreground","preconditions":{"resourceVersion":"41","uid":"u"}}`
	if status, _, err := fake.send(t, leading(7), "DELETE", settings+"?timeout=5s", "application/json", body); err != nil || status != 200 {
		t.Fatal(status, err)
	}
	patch, deletion := fake.requests[0], fake.requests[1]
	if patch.method != "PATCH" || patch.path != settings || patch.contentType != "application/merge-patch+json" {
		t.Fatalf("%+v", patch)
	}
	sameJSON(t, patch.body, `{"metadata":{"resourceVersion":"41","annotations":{"leasehold.dev/fencing-token":"7"}}}`)
	if deletion.method != "DELETE" || deletion.path != settings+"?timeout=5s" {
		t.Fatalf("%+v", deletion)
	}
	sameJSON(t, deletion.body, `{"propagationPolicy":"Foreground",
		"preconditions":{"resourceVersion":"42","uid":"u"}}`)
}

func TestNothingIsDeletedWithoutAVersion(t *testing.T) {
	fake := newAPI(t, answer{http.StatusOK, `{"metadata":{}}`})
	if _, _, err := fake.send(t, leading(7), "DELETE", settings, "", ""); err == nil || len(fake.requests) != 1 {
		t.Fatal(err, fake.requests)
	}
}

func TestWriteOfAnEarlierLeaseIsNotSent(t *testing.T) {
	fake := newAPI(t)
	token := int64(7)
	transport := fence.New(nil, func() (int64, bool) { return token, true }, nil)
	token = 8
	for _, method := range []string{"PUT", "DELETE"} {
		if _, _, err := fake.send(t, transport, method, settings, "", "{}"); !errors.Is(err, fence.ErrNoToken) {
			t.Fatal(err)
		}
	}
	if len(fake.requests) != 0 {
		t.Fatal(fake.requests)
	}
}

func TestRefusedStampIsTheAnswerOfADeletion(t *testing.T) {
	fake := newAPI(t, answer{http.StatusNotFound, "gone"})
	status, body, err := fake.send(t, leading(7), "DELETE", settings, "", "")
	if err != nil || status != http.StatusNotFound || body != "gone" || len(fake.requests) != 1 {
		t.Fatal(status, body, err, fake.requests)
	}
}

func TestStaleTokenIsReportedAndAnswered(t *testing.T) {
	refusal := fmt.Sprintf(refused, "stale fencing token 7")
	fake := newAPI(t, answer{http.StatusForbidden, refusal}, answer{http.StatusForbidden, `{"message":"no right"}`})
	var stale []int64
	leads := func() (int64, bool) { return 7, true }
	transport := fence.New(nil, leads, func(token int64) { stale = append(stale, token) })
	status, body, err := fake.send(t, transport, "PUT", settings, "", "{}")
	if err != nil || status != http.StatusForbidden || body != refusal {
		t.Fatal(status, body, err)
	}
	// RBAC's refusal says nothing about the lease.
	if status, _, err := fake.send(t, transport, "PUT", settings, "", "{}"); err != nil || status != http.StatusForbidden {
		t.Fatal(status, err)
	}
	if !reflect.DeepEqual(stale, []int64{7}) || len(fake.requests) != 2 {
		t.Fatal(stale, fake.requests)
	}
}

func TestWriteIsRepeatedUntilTheGrantIsSeen(t *testing.T) {
	unseen := answer{http.StatusUnprocessableEntity, fmt.Sprintf(refused, "if the lease is new, repeat the write, otherwise")}
	malformed := answer{http.StatusUnprocessableEntity, fmt.Sprintf(refused, "the write removes the label")}
	fake := newAPI(t, unseen, unseen, malformed)
	status, body, err := fake.send(t, leading(7), "PUT", settings, "", "{}")
	if err != nil || status != http.StatusUnprocessableEntity || body != malformed.body || len(fake.requests) != 3 {
		t.Fatal(status, body, err, fake.requests)
	}
	sameJSON(t, fake.requests[2].body, fake.requests[0].body)
}

func TestRepetitionEndsWithTheLeaseAndWithTheContext(t *testing.T) {
	unseen := answer{http.StatusUnprocessableEntity, fmt.Sprintf(refused, "repeat the write")}
	fake := newAPI(t, unseen, unseen)
	unseenLimit := 3
	transport := fence.New(nil, func() (int64, bool) { unseenLimit--; return 7, unseenLimit >= 0 }, nil)
	if _, _, err := fake.send(t, transport, "PUT", settings, "", "{}"); !errors.Is(err, fence.ErrNoToken) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	transport = fence.New(cancelling{cancel}, func() (int64, bool) { return 7, true }, nil)
	request, _ := http.NewRequestWithContext(ctx, "PUT", fake.URL+settings, strings.NewReader("{}"))
	response, err := transport.RoundTrip(request)
	if err != nil || response.StatusCode != http.StatusUnprocessableEntity {
		t.Fatal(response, err)
	}
}

// cancelling answers that the grant is not seen, and cancels the request's context.
type cancelling struct{ cancel context.CancelFunc }

func (c cancelling) RoundTrip(*http.Request) (*http.Response, error) {
	c.cancel()
	body := io.NopCloser(strings.NewReader(fmt.Sprintf(refused, "repeat the write")))
	return &http.Response{StatusCode: http.StatusUnprocessableEntity, Body: body}, nil
}
