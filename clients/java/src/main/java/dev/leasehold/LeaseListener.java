package dev.leasehold;

import java.time.Duration;

/**
 * Observes all locks of a client, for metrics and traces. Each method is called on the executor for
 * callbacks.
 */
public interface LeaseListener {
  /**
   * A lock was acquired.
   *
   * @param lease the lease
   * @param waited how long the caller waited for it
   */
  default void acquired(Lease lease, Duration waited) {}

  /**
   * A lock was lost. {@link Lease#reason} says why.
   *
   * @param lease the lease
   */
  default void lost(Lease lease) {}

  /**
   * A lock was released.
   *
   * @param lease the lease
   * @param isConfirmed whether the sidecar has confirmed it. Otherwise the lock is free when its
   *     session or its TTL ends
   */
  default void released(Lease lease, boolean isConfirmed) {}

  /**
   * A lock could not be acquired, and the client tries again.
   *
   * @param name the resource, or the name of the election
   * @param why the error
   */
  default void retried(String name, LeaseholdException why) {}
}
