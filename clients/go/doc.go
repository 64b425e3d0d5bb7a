// Package leasehold gives locks with fencing tokens to apps on Kubernetes. The Leasehold sidecar of
// the app's pod holds them; this package keeps a lease, ends it in time, and says so.
//
//	err := leasehold.Do(ctx, "billing", func(ctx context.Context, lease *leasehold.Lease) error {
//		for _, invoice := range invoices {
//			if err := charge(ctx, invoice, lease.Token()); err != nil {
//				return err
//			}
//		}
//		return nil
//	}, leasehold.Wait(time.Minute))
//
// The context is cancelled when the lock is lost, and [context.Cause] is then an [ErrLost].
// Between two steps, [Lease.Check] says whether the lease is valid. It sends no request.
//
// A [Lease] is not a [sync.Locker]. A mutex cannot be lost while it is held, and its Unlock cannot fail.
// A lock of a distributed system can be lost, so the work needs the context, the error and the token.
//
// What no client can do is stop code between two checks. So send the token with each write, and have
// the guarded resource refuse a smaller one.
package leasehold
