package leasehold

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"leasehold.dev/go/leasehold/internal/api"
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
	OwnerID string
	Pod     string
	// FencingToken is the first token of its grant.
	FencingToken int64
	HeldSince    time.Time
	Metadata     map[string]string
}

func holderOf(said *api.Holder) *Holder {
	if said == nil {
		return nil
	}
	holder := &Holder{OwnerID: said.OwnerID, Pod: said.Pod, Metadata: said.Metadata}
	if said.FencingToken != nil {
		holder.FencingToken = *said.FencingToken
	}
	// It is informational: without it, it is zero.
	holder.HeldSince, _ = time.Parse(time.RFC3339, said.HeldSince)
	return holder
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

// mayPass says whether another try may succeed soon.
func (e *Error) mayPass() bool {
	return e.Kind == ErrUnavailable && api.OutcomeOf(e.Code, http.StatusServiceUnavailable) != api.Lasting
}

func noAnswer(format string, values ...any) *Error {
	return &Error{Kind: ErrUnavailable, Code: unanswered, Detail: fmt.Sprintf(format, values...)}
}

// problem is a problem document (RFC 9457) of the sidecar.
type problem struct {
	Status int         `json:"status"`
	Code   string      `json:"code"`
	Detail string      `json:"detail"`
	Reason string      `json:"reason"`
	Holder *api.Holder `json:"holder"`
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
	switch api.OutcomeOf(said.Code, status) {
	case api.Held:
		kind = ErrHeld
	case api.Lost:
		kind = ErrLost
		if said.Reason != "" {
			said.Code = said.Reason
		}
	case api.Passing, api.Lasting:
		kind = ErrUnavailable
	case api.Refused:
	}
	return &Error{Kind: kind, Code: said.Code, Detail: said.Detail, Holder: holderOf(said.Holder)}
}
