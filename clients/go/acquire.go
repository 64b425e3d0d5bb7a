package leasehold

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"leasehold.dev/go/leasehold/internal/api"
)

const (
	// outageLimit is how long a sidecar may be away, or unable to answer, before the caller gets the
	// error. A restart takes a few seconds.
	outageLimit = 30 * time.Second
	// silenceLimit is how long a stream may be without an event while its caller waits. The sidecar sends
	// one at least every 40 s.
	silenceLimit = 90 * time.Second
	// longestWait is the sidecar's own bound for a wait by a connection.
	longestWait = 7 * 24 * time.Hour
)

// wanted is what to acquire, and how.
type wanted struct {
	resource string
	// wait is nil for a wait without a limit.
	wait *time.Duration
	// ttl is nil for a lock that is held by a connection.
	ttl      *time.Duration
	ownerID  string
	metadata map[string]string
	// isLead: resource is the name of an election.
	isLead    bool
	preferred bool
}

// acquisition is one acquisition, with all its attempts.
type acquisition struct {
	client *Client
	wanted *wanted
	// until is when the wait ends, if it has a limit.
	until time.Duration
	// outageSince is when the first of the attempts failed that have failed in a row, or 0.
	outageSince time.Duration
	pauses      pauses
}

// acquire tries until there is a lease, the wait is over, or an error is not worth another attempt.
func (c *Client) acquire(ctx context.Context, wanted *wanted) (*Lease, error) {
	a := &acquisition{client: c, wanted: wanted}
	if wanted.wait != nil {
		a.until = now() + max(0, *wanted.wait)
	}
	if wanted.ttl == nil || wanted.isLead {
		return a.try(ctx, a.hold)
	}
	renewal := newRenewal(a)
	lease, err := a.try(ctx, renewal.acquire)
	if err != nil && renewal.isUnanswered {
		go renewal.abandon()
	}
	return lease, err
}

func (a *acquisition) try(ctx context.Context, attempt func(context.Context) (*Lease, error)) (*Lease, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		start := now()
		lease, err := attempt(ctx)
		if err == nil {
			return lease, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if a.wanted.ttl != nil && now()-start > outageLimit {
			// The sidecar was there for most of this long poll.
			a.alive()
		}
		if !a.isWorthAnother(err) {
			return nil, err
		}
		if a.pauses == 0 {
			a.client.log.WarnContext(ctx, "lock not acquired yet", "resource", a.wanted.resource, "error", err)
		}
		a.client.hooks.retried(ctx, a.wanted.resource, err)
		if !a.pauses.sleep(ctx) {
			return nil, context.Cause(ctx)
		}
	}
}

func (a *acquisition) isWorthAnother(err error) bool {
	var of *Error
	if !errors.As(err, &of) || !of.mayPass() || a.isOver() {
		return false
	}
	if a.outageSince == 0 {
		a.outageSince = now()
	}
	return now()-a.outageSince < outageLimit
}

// alive ends an outage: the sidecar gave a sign of life.
func (a *acquisition) alive() {
	a.outageSince = 0
	a.pauses = 0
}

func (a *acquisition) isOver() bool {
	return a.wanted.wait != nil && now() >= a.until
}

// left is the rest of the wait in seconds, rounded up, or nil without a limit.
func (a *acquisition) left() *int64 {
	if a.wanted.wait == nil {
		return nil
	}
	left := roundUp(max(0, a.until-now()))
	return &left
}

func roundUp(left time.Duration) int64 {
	return int64((left + time.Second - 1) / time.Second)
}

// granted makes a lease of a grant, unless it is over already.
func (a *acquisition) granted(granted *api.Acquired, sent time.Duration, stop func()) (*Lease, error) {
	if granted.LeaseID == "" || granted.FencingToken <= 0 {
		return nil, a.client.sidecar.stranger()
	}
	deadline := after(sent, granted.ValidForMs)
	if deadline <= now() {
		return nil, noAnswer("the answer came too late: the lease is over")
	}
	return newLease(a.client, *granted, deadline, stop), nil
}

// pauses counts attempts; the pauses between them grow, and are random.
type pauses int

// sleep pauses. It returns false if ctx ends before.
func (p *pauses) sleep(ctx context.Context) bool {
	pause := min(2*time.Second, 100*time.Millisecond<<min(*p, 5))
	*p++
	timer := time.NewTimer(pause/2 + rand.N(pause/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
