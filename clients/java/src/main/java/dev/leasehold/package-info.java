/**
 * Locks for apps on Kubernetes, held by the Leasehold sidecar of the app's pod.
 *
 * <pre>{@code
 * try (Lease lease = client.lock("billing")) {
 *   for (Invoice invoice : invoices) {
 *     lease.check(); // throws LockLostException
 *     charge(invoice, lease.headers());
 *   }
 * }
 * }</pre>
 *
 * <p>Begin with {@link dev.leasehold.LeaseholdClient}.
 */
@NullMarked
package dev.leasehold;

import org.jspecify.annotations.NullMarked;
