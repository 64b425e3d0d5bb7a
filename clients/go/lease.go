package leasehold

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"leasehold.dev/go/leasehold/internal/api"
)

// HeaderName is the name of the header that carries a fencing token.
const HeaderName = "X-Fencing-Token"

const validityOver = "validity_over"

// Go's timers stand still while the machine sleeps, and the lease's clock does not.
const longestSleep = time.Second

// after is the time that an answer means by some milliseconds. They count from when the request was sent:
// the sidecar counts from when it read the request, which is later.
func after(sent time.Duration, ms int64) time.Duration {
	// No promise of a sidecar is longer than a day.
	const most = int64(24 * time.Hour / time.Millisecond)
	return sent + time.Duration(min(ms, most))*time.Millisecond
}

// ReleaseRequest is the request to release a lock. Finish the work and release it; nothing is taken.
type ReleaseRequest struct {
	// Reason is "person_asked", "agent_stopping", "max_hold", or another reason of the HTTP API.
	Reason string
	// Actor and Message are set if a person asks.
	Actor   string
	Message string
}

// Lease is the right to act, while [Lease.Check] returns nil. All methods may be called by several
// goroutines at the same time.
type Lease struct {
	client *Client
	grant  api.Acquired
	// stop ends what keeps the lease: the stream, or the renewals.
	stop func()

	mutex    sync.Mutex
	deadline time.Duration
	// end is nil until the lease has ended; an ended lease stays ended. The kind of a release is nil.
	end   *Error
	doubt string
	watch *time.Timer
	// cancel cancels the context of the caller's work.
	cancel    context.CancelCauseFunc
	request   *ReleaseRequest
	requested chan struct{}
}

func newLease(client *Client, granted api.Acquired, deadline time.Duration, stop func()) *Lease {
	lease := &Lease{
		client: client, grant: granted, stop: stop, deadline: deadline,
		cancel: func(error) {}, requested: make(chan struct{}),
	}
	lease.mutex.Lock()
	defer lease.mutex.Unlock()
	lease.watch = time.AfterFunc(lease.sleep(), lease.look)
	return lease
}

// Token returns the fencing token. It is larger than every token given before for this resource.
func (l *Lease) Token() int64 { return l.grant.FencingToken }

// Resource returns what is locked.
func (l *Lease) Resource() string { return l.grant.Resource }

// ID returns the lease's id, as the HTTP API and the logs have it.
func (l *Lease) ID() string { return l.grant.LeaseID }

// OwnerID returns the holder's name that others see.
func (l *Lease) OwnerID() string { return l.grant.OwnerID }

// Completed returns the keys of work that earlier holders have completed, oldest first.
func (l *Lease) Completed() []string { return l.grant.Completed }

// String describes the lease.
func (l *Lease) String() string {
	state := l.Reason()
	if state == "" {
		state = "held"
	}
	return fmt.Sprintf("lease of %q, token %d, %s", l.Resource(), l.Token(), state)
}

// Check returns an *[Error] of the kind [ErrLost] if the lease has ended, else nil. Call it before each
// write, and between the steps of long work. It sends no request: the lease's own deadline decides.
func (l *Lease) Check() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if end := l.ended(); end != nil {
		return &Error{Kind: ErrLost, Code: end.Code, Detail: end.Detail}
	}
	return nil
}

// Remaining returns for how long the lease is valid from now on, if nothing prolongs it. It is 0 if
// the lease has ended.
func (l *Lease) Remaining() time.Duration {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.ended() != nil {
		return 0
	}
	return max(0, l.deadline-now())
}

// Reason says why the lease has ended: "released", "validity_over", or a reason of the HTTP API. It is
// empty while the lease is valid.
func (l *Lease) Reason() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if end := l.ended(); end != nil {
		return end.Code
	}
	return ""
}

// SetHeader sets the header X-Fencing-Token for a request to the guarded resource. It sets nothing and
// returns the error of [Lease.Check] if the lease has ended.
func (l *Lease) SetHeader(header http.Header) error {
	if err := l.Check(); err != nil {
		return err
	}
	header.Set(HeaderName, strconv.FormatInt(l.Token(), 10))
	return nil
}

// Transport returns a transport that calls SetHeader for each request, and sends none after the lease
// has ended. base does the rest; nil is [http.DefaultTransport].
func (l *Lease) Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &fenced{lease: l, base: base}
}

type fenced struct {
	lease *Lease
	base  http.RoundTripper
}

// RoundTrip sends a request with the token.
func (f *fenced) RoundTrip(request *http.Request) (*http.Response, error) {
	// A transport must not change the request of its caller.
	request = request.Clone(request.Context())
	if err := f.lease.SetHeader(request.Header); err != nil {
		if request.Body != nil {
			request.Body.Close()
		}
		return nil, err
	}
	return f.base.RoundTrip(request)
}

// ReleaseRequested returns a channel that is closed when a release is requested; [Lease.ReleaseRequest]
// returns the request. Finish the work and release it; nothing is taken from you.
func (l *Lease) ReleaseRequested() <-chan struct{} { return l.requested }

// ReleaseRequest returns the request to release the lock, or nil.
func (l *Lease) ReleaseRequest() *ReleaseRequest {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.request
}

// Complete records under a key that work has succeeded; later holders find it in [Lease.Completed].
//
// An error of the kind ErrUnavailable means that it is not known whether the key is recorded: call it
// again.
func (l *Lease) Complete(ctx context.Context, key string) error {
	if err := l.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body := api.CompleteRequest{Key: key}
	err := l.client.sidecar.call(ctx, http.MethodPost, l.path()+"/complete", body, nil)
	l.lostBy(err)
	return err
}

// Release releases the lock, and cancels the context that came with it. The lease is over in any case.
// It may be called again. The request is sent also if ctx is cancelled, and takes ten seconds at most.
//
// It returns an error of the kind ErrLost if the lease was lost before: another holder may have had the
// lock, so the work does not count as guarded. A release that the sidecar did not confirm is logged,
// and the lock is then free when the sidecar's session or the lease's TTL ends.
func (l *Lease) Release(ctx context.Context) error {
	l.mutex.Lock()
	end := l.ended()
	left := min(callTimeout, l.deadline-now())
	if end == nil {
		l.finish(&Error{Code: "released", Detail: "the app has released the lock"})
	}
	l.mutex.Unlock()
	if end != nil {
		if end.Kind == nil {
			return nil
		}
		return end
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), left)
	defer cancel()
	defer l.stop()
	err := l.client.delete(ctx, l.ID())
	if of, isError := err.(*Error); isError && of.Kind == ErrLost {
		return err
	}
	if err != nil {
		l.client.log.WarnContext(ctx, "release not confirmed", "resource", l.Resource(), "error", err)
		go l.client.drop(l.ID())
	}
	return nil
}

func (l *Lease) path() string { return "/v1/locks/" + l.ID() }

// ended returns the end, with the mutex. The deadline counts, and not what a goroutine saw.
func (l *Lease) ended() *Error {
	if l.end == nil && now() >= l.deadline {
		l.finish(&Error{Kind: ErrLost, Code: validityOver, Detail: "no renewal came in time" + l.doubt})
	}
	return l.end
}

// lose ends the lease, unless it has ended before: the sidecar said so.
func (l *Lease) lose(reason, detail string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.ended() == nil {
		l.finish(&Error{Kind: ErrLost, Code: reason, Detail: detail})
	}
}

// lostBy ends the lease if an answer says that it is lost, and says whether it does.
func (l *Lease) lostBy(err error) bool {
	of, isError := err.(*Error)
	isLost := isError && of.Kind == ErrLost
	if isLost {
		l.lose(of.Code, of.Detail)
	}
	return isLost
}

// finish ends the lease, with the mutex.
func (l *Lease) finish(end *Error) {
	l.end = end
	l.watch.Stop()
	if end.Kind == nil {
		l.cancel(nil)
		return
	}
	l.cancel(end)
	go l.afterLoss(end)
}

// afterLoss does without the mutex what may take long: the app's logger and hooks may use the lease.
func (l *Lease) afterLoss(end *Error) {
	l.stop()
	if end.Code == validityOver {
		// The sidecar may keep the lock for longer.
		go l.client.drop(l.ID())
	}
	l.client.log.Warn("lock lost", "resource", l.Resource(), "fencingToken", l.Token(), "reason", end.Code)
	l.client.hooks.lost(l)
}

// look ends the lease at its deadline, also without a call of Check.
func (l *Lease) look() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.ended() == nil {
		l.watch.Reset(l.sleep())
	}
}

func (l *Lease) sleep() time.Duration { return min(longestSleep, max(0, l.deadline-now())) }

// prolong takes a new deadline from the sidecar. A lease that has ended stays ended.
func (l *Lease) prolong(deadline time.Duration) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.ended() == nil {
		l.deadline = deadline
		l.doubt = ""
		l.watch.Reset(l.sleep())
	}
}

// doubts remembers why no new deadline may come.
func (l *Lease) doubts(why error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.doubt = fmt.Sprintf(": %v", why)
}

// askForRelease takes a request to release.
func (l *Lease) askForRelease(request *ReleaseRequest) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.request == nil {
		close(l.requested)
	}
	l.request = request
}

// guards derives the context of the caller's work, which ends with the lease.
func (l *Lease) guards(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.cancel = cancel
	if end := l.ended(); end != nil {
		cancel(end)
	}
	return ctx
}
