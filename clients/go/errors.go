package leasehold

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// The kinds of errors. Compare with [errors.Is]; [errors.As] with an *[Error] has the rest.
var (
	// ErrHeld: another caller has the lock, and the wait is over.
	ErrHeld = errors.New("lock is held")
	// ErrLost: the lease is over. Stop what the lock guards: another holder may have the lock.
	ErrLost = errors.New("lock is lost")
	// ErrUnavailable: the sidecar, or the API server behind it, did not answer in time. No lock was acquired.
	ErrUnavailable = errors.New("locks are unavailable")
	// ErrRefused: the sidecar refused the request. The error's Detail says what to correct.
	ErrRefused = errors.New("request is refused")
)

// Error is an error of Leasehold: what failed, and what to do.
type Error struct {
	// Kind is ErrHeld, ErrLost, ErrUnavailable or ErrRefused.
	Kind error
	// Code is stable and meant for programs: a code of the HTTP API, the reason of a loss, or
	// "no_answer".
	Code string
	// Detail is meant for people.
	Detail string
	// Holder is the lock's holder, if Kind is ErrHeld and the sidecar knows it.
	Holder *Holder
	// isUnsent: there was no connection, so the sidecar has not read the request.
	isUnsent bool
}

// Holder is the holder of a lock, as the sidecar knows it.
type Holder struct {
	OwnerID      string            `json:"ownerId"`
	Pod          string            `json:"pod"`
	FencingToken int64             `json:"fencingToken"`
	HeldSince    time.Time         `json:"heldSince"`
	Metadata     map[string]string `json:"metadata"`
}

// Error returns the detail and the code.
func (e *Error) Error() string {
	return fmt.Sprintf("leasehold: %s (%s)", e.Detail, e.Code)
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error {
	return e.Kind
}

const (
	releasePending = "release_pending"
	unanswered     = "no_answer"
)

// These do not end within moments.
var lasting = map[string]bool{"not_installed": true, "shutting_down": true, "store_went_back": true}

// mayPass says whether another try may succeed soon.
func (e *Error) mayPass() bool {
	return e.Kind == ErrUnavailable && !lasting[e.Code]
}

func noAnswer(format string, values ...any) *Error {
	return &Error{Kind: ErrUnavailable, Code: unanswered, Detail: fmt.Sprintf(format, values...)}
}

// problem is a problem document (RFC 9457) of the sidecar.
type problem struct {
	Status int     `json:"status"`
	Code   string  `json:"code"`
	Detail string  `json:"detail"`
	Reason string  `json:"reason"`
	Holder *Holder `json:"holder"`
}

// problemOf returns the error that a sidecar's answer describes.
func problemOf(status int, body []byte) *Error {
	var said problem
	// Without a document, the status alone counts.
	_ = json.Unmarshal(body, &said)
	if status == 0 {
		status = said.Status
	}
	if said.Code == "" {
		said.Code = fmt.Sprintf("http_%d", status)
	}
	if said.Detail == "" {
		said.Detail = fmt.Sprintf("the sidecar answered with status %d", status)
	}
	kind := ErrRefused
	switch {
	case said.Code == "lock_held":
		kind = ErrHeld
	case said.Code == "lease_lost" || said.Code == "lease_unknown":
		kind = ErrLost
		if said.Reason != "" {
			said.Code = said.Reason
		}
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		kind = ErrUnavailable
	}
	return &Error{Kind: kind, Code: said.Code, Detail: said.Detail, Holder: said.Holder}
}
