package leasehold

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"leasehold.dev/go/leasehold/internal/api"
)

const (
	// longestPoll is the sidecar's own bound for a long poll.
	longestPoll = 240 * time.Second
	// shortestPause is between two renewals, whatever the sidecar says.
	shortestPause = 50 * time.Millisecond
)

// renewal acquires by `POST /v1/locks/acquire`, then renews in time. No connection stays open, and the
// lease survives a restart of the sidecar alone.
type renewal struct {
	*acquisition
	// requestID is that of the current long poll, so that an answer that got lost takes no second lock.
	requestID string
	// isUnanswered: the sidecar may have granted what the last request asked for.
	isUnanswered bool
}

func newRenewal(of *acquisition) *renewal {
	return &renewal{acquisition: of, requestID: rand.Text()}
}

// acquire sends one long poll after another, until there is a lease or an error.
func (r *renewal) acquire(ctx context.Context) (*Lease, error) {
	for {
		lease, err := r.poll(ctx)
		var of *Error
		switch {
		case err == nil:
			return lease, nil
		case !errors.As(err, &of):
			return nil, err
		case of.Kind == ErrHeld && !r.isOver():
			// One long poll is over, and not the wait.
			r.alive()
			r.requestID = rand.Text()
		case of.Kind == ErrLost:
			// An earlier answer did not arrive, and its lease has ended.
			r.requestID = rand.Text()
			return nil, &Error{Kind: ErrUnavailable, Code: of.Code, Detail: of.Detail}
		default:
			return nil, err
		}
	}
}

func (r *renewal) poll(ctx context.Context) (*Lease, error) {
	poll := roundUp(longestPoll)
	if left := r.left(); left != nil {
		poll = min(poll, *left)
	}
	limited, cancel := context.WithTimeout(ctx, time.Duration(poll)*time.Second+callTimeout)
	defer cancel()
	sent := now()
	granted, err := r.send(limited, poll)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	lease, err := r.granted(granted, sent, func() { close(ended) })
	if err != nil {
		r.requestID = rand.Text()
		if granted.LeaseID != "" {
			go r.client.drop(granted.LeaseID)
		}
		return nil, err
	}
	go keep(lease, ended, after(sent, granted.RenewAfterMs))
	return lease, nil
}

func (r *renewal) send(ctx context.Context, waitSeconds int64) (*api.Acquired, error) {
	body := api.AcquireRequest{
		Resource: r.wanted.resource, OwnerID: r.wanted.ownerID, Metadata: r.wanted.metadata,
		TTLSeconds: roundUp(*r.wanted.ttl), WaitSeconds: &waitSeconds, RequestID: r.requestID,
	}
	var granted api.Acquired
	err := r.client.sidecar.call(ctx, http.MethodPost, "/v1/locks/acquire", body, &granted)
	var of *Error
	switch {
	case !errors.As(err, &of) || of.Kind != ErrUnavailable:
		r.isUnanswered = false
	case of.Code == unanswered && !of.isUnsent:
		r.isUnanswered = true
	}
	// Another answer, such as 503, says nothing of an earlier request.
	return &granted, err
}

// abandon releases what the last request may have acquired: a repetition gets the same lease. It also ends
// the queue entry that the sidecar keeps for a caller that hangs up. A repetition that the sidecar reads
// before the hang-up ends nothing, so a second one follows.
func (r *renewal) abandon() {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var pauses pauses
	for isSecond := false; ; isSecond = true {
		granted, err := r.send(ctx, 0)
		if err == nil {
			r.client.drop(granted.LeaseID)
			return
		}
		var of *Error
		isHeld := errors.As(err, &of) && of.Kind == ErrHeld
		if isHeld && !isSecond {
			time.Sleep(time.Second)
		} else if of == nil || !of.mayPass() || !pauses.sleep(ctx) {
			return
		}
	}
}

// keep renews a lease until it has ended.
func keep(lease *Lease, ended <-chan struct{}, next time.Duration) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(max(shortestPause, next-now())):
		}
		remaining := lease.Remaining()
		if remaining == 0 {
			return
		}
		sent := now()
		renewed, err := renew(lease, min(callTimeout, remaining/2))
		switch {
		case err == nil:
			lease.prolong(after(sent, renewed.ValidForMs))
			if request := renewed.ReleaseRequested; request != nil {
				lease.askForRelease(&ReleaseRequest{Reason: request.Reason, Actor: request.Actor, Message: request.Message})
			}
			next = after(sent, renewed.RenewAfterMs)
		case lease.lostBy(err):
			return
		default:
			// The last validity still counts.
			lease.doubts(fmt.Errorf("renewal: %w", err))
			next = now() + min(time.Second, lease.Remaining()/4)
		}
	}
}

// renew sends a renewal. Its time limit leaves time for another one.
func renew(lease *Lease, limit time.Duration) (*api.Lease, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var renewed api.Lease
	err := lease.client.sidecar.call(ctx, http.MethodPost, lease.path()+"/renew", struct{}{}, &renewed)
	if err == nil && renewed.LeaseID == "" {
		err = lease.client.sidecar.stranger()
	}
	return &renewed, err
}
