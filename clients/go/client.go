package leasehold

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"sync"
	"time"
)

// Client is a sidecar, or `leasehold dev`. One is enough for a process. All methods may be called by
// several goroutines at the same time.
type Client struct {
	sidecar *sidecar
	log     *slog.Logger
	hooks   Hooks
}

// New returns a client of the sidecar at an address: http://HOST:PORT or unix:///PATH. The default, for
// an empty address, is the environment's LEASEHOLD_URL, which an injected pod has, or
// http://127.0.0.1:7373.
func New(address string, options ...ClientOption) (*Client, error) {
	sidecar, err := newSidecar(cmp.Or(address, os.Getenv("LEASEHOLD_URL"), defaultURL))
	if err != nil {
		return nil, err
	}
	client := &Client{sidecar: sidecar, log: slog.Default()}
	for _, option := range options {
		option(client)
	}
	return client, nil
}

// ClientOption is an option of a client.
type ClientOption func(*Client)

// WithLogger has warnings of lost locks, of releases that were not confirmed, and of repeated attempts
// logged there; default: [slog.Default].
func WithLogger(log *slog.Logger) ClientOption {
	return func(c *Client) { c.log = log }
}

// Hooks are called when something happens to a lock, for metrics and traces. Each may be nil. They must
// return soon, and must not call methods of a client.
type Hooks struct {
	// Acquired is called with the caller's context, and for how long the lock was waited for.
	Acquired func(ctx context.Context, lease *Lease, waited time.Duration)
	// Lost is called when a lease is lost; its Reason says why.
	Lost func(lease *Lease)
	// Retried is called when an attempt to acquire has failed and is repeated.
	Retried func(ctx context.Context, resource string, why error)
}

func (h *Hooks) acquired(ctx context.Context, lease *Lease, waited time.Duration) {
	if h.Acquired != nil {
		h.Acquired(ctx, lease, waited)
	}
}

func (h *Hooks) lost(lease *Lease) {
	if h.Lost != nil {
		h.Lost(lease)
	}
}

func (h *Hooks) retried(ctx context.Context, resource string, why error) {
	if h.Retried != nil {
		h.Retried(ctx, resource, why)
	}
}

// WithHooks has functions called when something happens to a lock.
func WithHooks(hooks Hooks) ClientOption {
	return func(c *Client) { c.hooks = hooks }
}

// Option is an option of an acquisition.
type Option func(*wanted)

// Wait limits for how long a lock is waited for while it is held, rounded up to seconds; default:
// without a limit. 0 is one try. More than seven days are without a limit.
func Wait(limit time.Duration) Option {
	return func(w *wanted) {
		w.wait = nil
		if limit <= longestWait {
			w.wait = &limit
		}
	}
}

// TTL holds the lock by renewals: it is free after this silence, rounded up to seconds, and its lease
// survives a restart of the sidecar. Default: by a connection, and it is free when the process ends. A lead is always
// held by a connection.
func TTL(silence time.Duration) Option {
	return func(w *wanted) { w.ttl = &silence }
}

// OwnerID is the holder's name that others see; default: the pod's name.
func OwnerID(name string) Option {
	return func(w *wanted) { w.ownerID = name }
}

// Metadata is shown with the holder.
func Metadata(metadata map[string]string) Option {
	metadata = maps.Clone(metadata)
	return func(w *wanted) { w.metadata = metadata }
}

// Preferred has a candidate of an election get the lead before those that are not preferred. It does nothing for a lock.
func Preferred() Option {
	return func(w *wanted) { w.preferred = true }
}

// Lock acquires a lock. The returned context ends with the lease: use it for the guarded work. The
// caller releases the lease:
//
//	defer lease.Release(ctx)
//
// If ctx is cancelled while Lock waits, it holds nothing and returns the context's cause. Other errors
// are an *[Error].
func (c *Client) Lock(ctx context.Context, resource string, options ...Option) (*Lease, context.Context, error) {
	return c.begin(ctx, wanted{resource: resource}, options)
}

// Lead waits until this process leads an election, a DNS label of at most 56 characters. The lease is
// that of a lock: its release steps down.
func (c *Client) Lead(ctx context.Context, election string, options ...Option) (*Lease, context.Context, error) {
	return c.begin(ctx, wanted{resource: election, isLead: true}, options)
}

func (c *Client) begin(ctx context.Context, wanted wanted, options []Option) (*Lease, context.Context, error) {
	for _, option := range options {
		option(&wanted)
	}
	start := now()
	lease, err := c.acquire(ctx, &wanted)
	if err != nil {
		return nil, ctx, err
	}
	c.hooks.acquired(ctx, lease, now()-start)
	return lease, lease.guards(ctx), nil
}

// Do runs a function while it holds a lock, and releases the lock when the function has returned. It
// returns the function's error, else an error of the kind ErrLost if the lock was lost meanwhile.
func (c *Client) Do(
	ctx context.Context, resource string, work func(ctx context.Context, lease *Lease) error, options ...Option,
) (err error) {
	lease, ctx, err := c.Lock(ctx, resource, options...)
	if err != nil {
		return err
	}
	// Also after a panic.
	defer func() {
		if lost := lease.Release(ctx); err == nil {
			err = lost
		}
	}()
	return work(ctx, lease)
}

// delete releases a lease at the sidecar. It repeats a call that got no answer until ctx ends.
func (c *Client) delete(ctx context.Context, leaseID string) error {
	var pauses pauses
	for {
		err := c.tryDelete(ctx, leaseID)
		of, isError := err.(*Error)
		if !isError || !of.mayPass() || of.Code == releasePending || !pauses.sleep(ctx) {
			return err
		}
	}
}

func (c *Client) tryDelete(ctx context.Context, leaseID string) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	answer, err := c.sidecar.send(ctx, http.MethodDelete, "/v1/locks/"+leaseID, nil)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode == http.StatusAccepted {
		detail := "the API server did not confirm it yet, and the sidecar continues to try"
		return &Error{Kind: ErrUnavailable, Code: releasePending, Detail: detail}
	}
	return nil
}

// drop releases a lease that the app does not have. Without an answer its lock is free later.
func (c *Client) drop(leaseID string) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_ = c.delete(ctx, leaseID)
}

var standard = sync.OnceValues(func() (*Client, error) { return New("") })

// Lock is [Client.Lock] of the sidecar that LEASEHOLD_URL names.
func Lock(ctx context.Context, resource string, options ...Option) (*Lease, context.Context, error) {
	client, err := standard()
	if err != nil {
		return nil, ctx, err
	}
	return client.Lock(ctx, resource, options...)
}

// Do is [Client.Do] of the sidecar that LEASEHOLD_URL names.
func Do(
	ctx context.Context, resource string, work func(ctx context.Context, lease *Lease) error, options ...Option,
) error {
	client, err := standard()
	if err != nil {
		return err
	}
	return client.Do(ctx, resource, work, options...)
}
