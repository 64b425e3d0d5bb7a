package leasehold

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// A leader that returns at once must not flood the API server with terms.
const pauseBetweenTerms = time.Second

// Callbacks do a leader's work. The names are those of client-go's leader election.
//
// Unlike there, a candidate whose term has ended is a candidate again, and OnStoppedLeading is called
// only after OnStartedLeading has returned, so two terms of one process never overlap.
type Callbacks struct {
	// OnStartedLeading does the leader's work. ctx is cancelled when the lead is lost, with an error of
	// the kind ErrLost as its cause, and by [Election.Stop]. When it returns, the process steps down. It
	// should also return soon after [Lease.ReleaseRequested]. Without it the process leads until the lead
	// is lost; ask [Election.IsLeader].
	OnStartedLeading func(ctx context.Context, lease *Lease)
	// OnStoppedLeading is called when a term has ended, after the lead was released.
	OnStoppedLeading func()
}

// Election is a candidacy in the background.
type Election struct {
	client    *Client
	name      string
	callbacks Callbacks
	cancel    context.CancelFunc
	done      chan struct{}

	mutex sync.Mutex
	lease *Lease
	err   error
}

// Elect runs for an election in the background, term after term, until ctx ends, or [Election.Stop].
//
// A limit for the wait has no effect.
func (c *Client) Elect(ctx context.Context, name string, callbacks Callbacks, options ...Option) *Election {
	options = append(slices.Clip(options), func(w *wanted) { w.wait = nil })
	ctx, cancel := context.WithCancel(ctx)
	election := &Election{
		client: c, name: name, callbacks: callbacks, cancel: cancel, done: make(chan struct{}),
	}
	go election.run(ctx, options)
	return election
}

// IsLeader says whether this process leads now. It sends no request: the lease's own deadline decides.
// Send the lease's token with every write as the leader all the same.
func (e *Election) IsLeader() bool { return e.Lease() != nil }

// Lease returns the lead while this process leads, else nil.
func (e *Election) Lease() *Lease {
	e.mutex.Lock()
	lease := e.lease
	e.mutex.Unlock()
	if lease == nil || lease.Check() != nil {
		return nil
	}
	return lease
}

// Token returns the fencing token while this process leads; false: it does not lead. The package
// fence adds it to writes.
func (e *Election) Token() (int64, bool) {
	lease := e.Lease()
	if lease == nil {
		return 0, false
	}
	return lease.Token(), true
}

// Stop steps down, and ends the candidacy. It waits until OnStartedLeading and OnStoppedLeading have
// returned, so they must not call it: they cancel the context that was given to Elect.
func (e *Election) Stop() {
	e.cancel()
	<-e.done
}

// Done is closed when the candidacy has ended.
func (e *Election) Done() <-chan struct{} { return e.done }

// Err returns the error that ended the candidacy, for example of the kind ErrRefused for an invalid
// name. It is nil before, and after a stop.
func (e *Election) Err() error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.err
}

func (e *Election) run(ctx context.Context, options []Option) {
	defer close(e.done)
	defer e.cancel()
	for ctx.Err() == nil {
		lease, term, err := e.client.Lead(ctx, e.name, options...)
		switch {
		case ctx.Err() != nil && err != nil:
			return
		case errors.Is(err, ErrUnavailable):
			e.client.log.WarnContext(ctx, "lead not acquired", "election", e.name, "error", err)
		case err != nil:
			e.client.log.ErrorContext(ctx, "candidacy ended", "election", e.name, "error", err)
			e.set(nil, err)
			return
		default:
			e.serve(lease, term)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pauseBetweenTerms):
		}
	}
}

// serve is one term.
func (e *Election) serve(lease *Lease, term context.Context) {
	e.client.log.InfoContext(term, "lead acquired", "election", e.name, "fencingToken", lease.Token())
	e.set(lease, nil)
	func() {
		// Also after a panic: the lead must not outlive the work.
		defer func() {
			e.set(nil, nil)
			_ = lease.Release(term)
		}()
		if e.callbacks.OnStartedLeading != nil {
			e.callbacks.OnStartedLeading(term, lease)
		} else {
			<-term.Done()
		}
	}()
	if e.callbacks.OnStoppedLeading != nil {
		e.callbacks.OnStoppedLeading()
	}
}

func (e *Election) set(lease *Lease, err error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.lease, e.err = lease, err
}
