// Package httpfence refuses stale writers in a service of net/http (docs/fencing-http.md). [Require] checks that each
// write has the header X-Fencing-Token. A [Handler] passes the token to the fence of its database, first in its
// transaction, and returns the fence's error:
//
//	mux.Handle("PUT /report", httpfence.Handler(func(w http.ResponseWriter, r *http.Request) error {
//		return save(r, httpfence.Token(r.Context()))
//	}))
//	http.ListenAndServe(address, httpfence.Require(mux))
//
// It compares no tokens: the write comes after a comparison here, so the comparison would not be a fence.
package httpfence

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const (
	header = "X-Fencing-Token"
	// A token is at most 2^53 - 1, which is exact as a JSON number.
	tokenBits = 53
)

type contextKey struct{}

// Token returns the fencing token of a request, from the context that [Require] gives to the handler. It is 0, which every
// fence refuses, if the request's method is unfenced.
func Token(ctx context.Context) int64 {
	token, _ := ctx.Value(contextKey{}).(int64)
	return token
}

// Require returns a handler that answers a request without a fencing token with 428, and one whose token is not valid
// with 400. Requests with an unfenced method need no token. The default is GET, HEAD and OPTIONS.
func Require(next http.Handler, unfenced ...string) http.Handler {
	if len(unfenced) == 0 {
		unfenced = []string{http.MethodGet, http.MethodHead, http.MethodOptions}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(unfenced, r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		values := r.Header[header]
		if len(values) == 0 {
			answer(w, http.StatusPreconditionRequired, "token_required", "Fencing token is required",
				"send the fencing token of your lease in the header X-Fencing-Token with each write")
			return
		}
		token, err := strconv.ParseUint(values[0], 10, tokenBits)
		if err != nil || len(values) > 1 || values[0][0] == '0' {
			answer(w, http.StatusBadRequest, "token_invalid", "Fencing token is not valid",
				"send the header X-Fencing-Token once, with a whole number from 1 to 9007199254740991 in decimal digits")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), contextKey{}, int64(token))))
	})
}

// Handler is a handler that returns an error. The refusal of a fence ([Refusal]) is answered with 412. Other errors are
// logged by [slog.Default] and answered with 500. If the response has started, it is aborted instead.
type Handler func(http.ResponseWriter, *http.Request) error

// ServeHTTP calls the function.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	response := &response{ResponseWriter: w}
	err := h(response, r)
	if err == nil {
		return
	}
	refusal, stale := Refusal(err)
	if response.started || !stale {
		slog.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	switch {
	case response.started:
		// Without this, the client would take the response for a complete one.
		panic(http.ErrAbortHandler)
	case stale:
		answer(w, http.StatusPreconditionFailed, "stale_token", "Fencing token is stale",
			"a newer lease exists: stop working, and do not repeat the request. The store's answer: "+refusal)
	default:
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
	}
}

// Refusal returns the text with which a fence of Leasehold refused a stale token, and false for any other error. It knows
// the fences of PostgreSQL, MariaDB, SQLite and Redis with any driver, also in an error that wraps theirs.
func Refusal(err error) (string, bool) {
	var state interface {
		error
		SQLState() string
	}
	// The text of an error of PostgreSQL may have values of the request, so it does not count.
	if errors.As(err, &state) && state.SQLState() != integrityViolation {
		return state.Error(), state.SQLState() == "LH001"
	}
	var text string
	for ; err != nil && saysStale(err.Error()); err = errors.Unwrap(err) {
		text = err.Error()
	}
	return text, text != ""
}

// Drivers of MariaDB may have this SQLSTATE for each constraint. The text then names the constraint of the fence.
const integrityViolation = "23000"

func saysStale(text string) bool {
	return strings.Contains(text, "`stale_fencing_token`") || strings.Contains(text, "stale fencing token")
}

// answer writes a problem document (RFC 9457).
func answer(w http.ResponseWriter, status int, code, title, detail string) {
	// A handler may have set them for its own response.
	for _, name := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} {
		w.Header().Del(name)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	// The client may be gone.
	_ = json.NewEncoder(w).Encode(map[string]any{
		"type": "urn:leasehold:problem:" + code, "title": title, "status": status, "code": code, "detail": detail,
	})
}

// response records whether the response has started.
type response struct {
	http.ResponseWriter
	started bool
}

func (r *response) WriteHeader(status int) {
	// Others may follow an informational response.
	r.started = r.started || status >= http.StatusOK
	r.ResponseWriter.WriteHeader(status)
}

func (r *response) Write(body []byte) (int, error) {
	r.started = true
	return r.ResponseWriter.Write(body)
}

// Flush sends what was written. It is here because Unwrap does not give a caller an [http.Flusher].
func (r *response) Flush() {
	r.started = true
	// An http.Flusher returns no error. The next write does.
	_ = http.NewResponseController(r.ResponseWriter).Flush()
}

// Unwrap is for [http.ResponseController].
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }
