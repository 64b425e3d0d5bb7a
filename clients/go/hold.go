package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"time"

	"leasehold.dev/go/leasehold/internal/api"
)

var errSilent = errors.New("it was silent for too long")

// hold acquires by `POST /v1/locks/hold`, or by a candidacy: the lock is held as long as the connection
// is open.
func (a *acquisition) hold(ctx context.Context) (*Lease, error) {
	// The stream outlives the caller's wait, and ends with the lease.
	held, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	waits := context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })
	sent := now()
	path, body := a.request()
	watch := time.AfterFunc(a.silence(), func() { stop(errSilent) })
	defer watch.Stop()
	events, err := a.client.sidecar.stream(held, path, body)
	if err != nil {
		waits()
		stop(nil)
		return nil, err
	}
	lease, err := a.wait(events, sent, watch, func() { stop(nil) })
	// The caller may have left just now, or the limit may have closed the stream.
	isWaitedFor, isInTime := waits(), watch.Stop()
	if err != nil {
		stop(nil)
		events.close()
		return nil, err
	}
	go follow(events, lease, sent)
	if isWaitedFor && isInTime {
		return lease, nil
	}
	go lease.Release(held)
	if !isWaitedFor {
		return nil, context.Cause(ctx)
	}
	return nil, a.client.sidecar.silent(held, errSilent)
}

// request is the call that holds it by a connection.
func (a *acquisition) request() (path string, body any) {
	wanted := a.wanted
	if wanted.isLead {
		return "/v1/elections/" + url.PathEscape(wanted.resource) + "/candidacy",
			api.CandidacyRequest{OwnerID: wanted.ownerID, Metadata: wanted.metadata, Preferred: wanted.preferred}
	}
	return "/v1/locks/hold", api.HoldRequest{
		Resource: wanted.resource, OwnerID: wanted.ownerID, Metadata: wanted.metadata, WaitSeconds: a.left(),
	}
}

// silence is how long the next event may take.
func (a *acquisition) silence() time.Duration {
	left := a.left()
	if left == nil {
		return silenceLimit
	}
	return min(silenceLimit, time.Duration(*left)*time.Second+callTimeout)
}

// wait reads events until the lock is acquired.
func (a *acquisition) wait(events *events, sent time.Duration, watch *time.Timer, stop func()) (*Lease, error) {
	for {
		event, err := events.next()
		if err != nil {
			return nil, err
		}
		switch event.name {
		case "acquired":
			var granted api.Acquired
			if json.Unmarshal(event.data, &granted) != nil {
				return nil, a.client.sidecar.stranger()
			}
			return a.granted(&granted, sent, stop)
		case "error":
			return nil, problemOf(0, event.data)
		case "waiting":
			a.alive()
			watch.Reset(a.silence())
		}
	}
}

// follow reads the events of a lease until its stream ends. The lease's end closes the stream: if it cannot be
// read any more, the sidecar must not release the lock before the deadline.
func follow(events *events, lease *Lease, sent time.Duration) {
	for {
		event, err := events.next()
		if err != nil {
			// The sidecar is gone, and keeps its promise until the deadline.
			lease.doubts(err)
			return
		}
		if event.name == "lost" {
			lost := api.LostEvent{Reason: "lost"}
			_ = json.Unmarshal(event.data, &lost)
			lease.lose(lost.Reason, lost.Detail)
			return
		}
		// Other events are the same, with fewer fields.
		var said api.ReleaseRequestedEvent
		if json.Unmarshal(event.data, &said) != nil {
			continue
		}
		if said.ValidForMs > 0 {
			lease.prolong(after(sent, said.ValidForMs))
		}
		if event.name == "release-requested" {
			lease.askForRelease(&ReleaseRequest{Reason: said.Reason, Actor: said.Actor, Message: said.Message})
		}
	}
}
