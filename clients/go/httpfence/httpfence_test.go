package httpfence_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"leasehold.dev/go/leasehold/httpfence"
)

// sqlError is an error as pgx and lib/pq return it.
type sqlError struct{ state, text string }

func (e sqlError) Error() string    { return e.text }
func (e sqlError) SQLState() string { return e.state }

var stale = sqlError{"LH001", "ERROR: stale fencing token 5 for report: the newest is 7 (SQLSTATE LH001)"}

// send sends a request to a handler behind Require.
func send(t *testing.T, handler http.Handler, method string, tokens ...string) (int, map[string]any, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(t.Context(), method, server.URL, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range tokens {
		request.Header.Add("x-fencing-token", token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	var document map[string]any
	if response.Header.Get("Content-Type") == "application/problem+json" {
		if err := json.Unmarshal(text, &document); err != nil {
			t.Fatal(err)
		}
	}
	return response.StatusCode, document, err
}

func failing(err error) http.Handler {
	return httpfence.Require(httpfence.Handler(func(http.ResponseWriter, *http.Request) error { return err }))
}

// tokens collects what the handler sees.
func tokens(seen *[]int64, unfenced ...string) http.Handler {
	return httpfence.Require(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		*seen = append(*seen, httpfence.Token(r.Context()))
	}), unfenced...)
}

func expect(t *testing.T, status int, document map[string]any, wanted int, code string) {
	t.Helper()
	if status != wanted || document["code"] != code || document["status"] != float64(wanted) ||
		document["title"] == "" || document["detail"] == "" || document["type"] != "urn:leasehold:problem:"+code {
		t.Errorf("wanted %d %s, got %d %v", wanted, code, status, document)
	}
}

func TestWriteWithoutTokenIsRefused(t *testing.T) {
	var seen []int64
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "PURGE"} {
		status, document, _ := send(t, tokens(&seen), method)
		expect(t, status, document, 428, "token_required")
	}
	if len(seen) > 0 {
		t.Error("the handler was called")
	}
}

func TestInvalidTokenIsRefused(t *testing.T) {
	var seen []int64
	for _, values := range [][]string{
		{"1", "1"}, {"5", "6"}, {""}, {"0"}, {"-1"}, {"+1"}, {"01"}, {"1e3"}, {"1.0"}, {"0x10"}, {"1_000"}, {"5 6"},
		{"5,6"}, {"5;"}, {"٥"}, {"abc"}, {"9007199254740992"}, {"18446744073709551617"}, {strings.Repeat("9", 4000)},
	} {
		status, document, _ := send(t, tokens(&seen), "PUT", values...)
		expect(t, status, document, 400, "token_invalid")
	}
	// A server removes the space around a value. Other callers of a handler do not.
	request := httptest.NewRequest("PUT", "/", nil)
	request.Header["X-Fencing-Token"] = []string{" 5"}
	recorder := httptest.NewRecorder()
	tokens(&seen).ServeHTTP(recorder, request)
	if recorder.Code != 400 || len(seen) > 0 {
		t.Errorf("%d, the handler saw %v", recorder.Code, seen)
	}
}

func TestHandlerSeesToken(t *testing.T) {
	var seen []int64
	for _, value := range []string{"1", "9007199254740991", " 5 "} {
		if status, _, _ := send(t, tokens(&seen), "PUT", value); status != 200 {
			t.Error(value, status)
		}
	}
	if fmt.Sprint(seen) != "[1 9007199254740991 5]" {
		t.Error(seen)
	}
}

func TestReadNeedsNoToken(t *testing.T) {
	var seen []int64
	for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
		if status, _, _ := send(t, tokens(&seen), method, "not a token"); status != 200 {
			t.Error(method, status)
		}
	}
	if status, _, _ := send(t, tokens(&seen, "QUERY"), "QUERY"); status != 200 {
		t.Error("QUERY", status)
	}
	status, document, _ := send(t, tokens(&seen, "QUERY"), "GET")
	expect(t, status, document, 428, "token_required")
	if fmt.Sprint(seen) != "[0 0 0 0]" {
		t.Error(seen)
	}
}

func TestRefusalOfFenceIsAnswered(t *testing.T) {
	for _, err := range []error{
		stale,
		sqlError{"23000", "Error 4025 (23000): CONSTRAINT `stale_fencing_token` failed for `db`.`leasehold_fences`"},
		errors.New("Error 4025 (23000): CONSTRAINT `stale_fencing_token` failed for `db`.`leasehold_fences`"),
		errors.New("constraint failed: stale fencing token (1811)"),
		errors.New("STALETOKEN stale fencing token 5 for {report}:fence: the newest is 7. The lock was granted again."),
	} {
		for _, returned := range []error{err, fmt.Errorf("save: %w", err), errors.Join(errors.New("save"), err)} {
			status, document, _ := send(t, failing(returned), "PUT", "5")
			expect(t, status, document, 412, "stale_token")
			if !strings.Contains(fmt.Sprint(document["detail"]), err.Error()) {
				t.Error(document["detail"])
			}
		}
		if text, stale := httpfence.Refusal(fmt.Errorf("save: %w", err)); !stale || text != err.Error() {
			t.Error(text)
		}
	}
}

func TestOtherErrorIsNoRefusal(t *testing.T) {
	for _, err := range []error{
		errors.New("no connection"),
		sqlError{"LH002", "ERROR: call leasehold.fence('stale fencing token', token) first (SQLSTATE LH002)"},
		sqlError{"23514", `new row for relation "fences" violates check constraint "fences_token_check"`},
		fmt.Errorf("save: %w", sqlError{"23505", "Key (name)=(stale fencing token) already exists."}),
		errors.New("Error 4025 (23000): CONSTRAINT `amount` failed for `db`.`ledger`"),
	} {
		if status, document, _ := send(t, failing(err), "PUT", "5"); status != 500 || document != nil {
			t.Error(err, status, document)
		}
	}
	if _, stale := httpfence.Refusal(nil); stale {
		t.Error("nil is a refusal")
	}
}

func TestStartedResponseIsAborted(t *testing.T) {
	for _, begin := range []func(http.ResponseWriter){
		func(w http.ResponseWriter) { w.WriteHeader(202) },
		func(w http.ResponseWriter) { fmt.Fprint(w, "some") },
		func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
	} {
		status, document, err := send(t, httpfence.Require(httpfence.Handler(
			func(w http.ResponseWriter, _ *http.Request) error { begin(w); return stale })), "PUT", "5")
		if err == nil || document != nil {
			t.Error("the response seems complete", status, document)
		}
	}
}

func TestHeadersOfHandlerDoNotSpoilAnswer(t *testing.T) {
	status, document, err := send(t, httpfence.Require(httpfence.Handler(
		func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Length", "1")
			w.WriteHeader(http.StatusEarlyHints)
			return stale
		})), "PUT", "5")
	expect(t, status, document, 412, "stale_token")
	if err != nil {
		t.Error(err)
	}
}

func TestResponseOfHandlerIsUnchanged(t *testing.T) {
	status, document, err := send(t, httpfence.Require(httpfence.Handler(
		func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(201); return nil })), "PUT", "5")
	if status != 201 || document != nil || err != nil {
		t.Error(status, document, err)
	}
}
