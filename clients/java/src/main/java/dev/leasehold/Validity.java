package dev.leasehold;

import java.time.Duration;
import org.jspecify.annotations.Nullable;

/**
 * Decides whether a lease is valid, by its own deadline. A lease that has ended stays ended. Any
 * thread may call it, unless a method says otherwise.
 */
final class Validity {
  /** Why a lease has ended. */
  record End(String reason, String detail) {
    LockLostException toException() {
      return new LockLostException(detail, reason);
    }
  }

  private final Loop loop;
  private final Runnable afterLoss;
  // All that follows is guarded by this.
  private long deadline;
  private @Nullable End end;
  private boolean isReleased;
  private String doubt = "";

  /** Begins until a deadline. A loss runs a task on the loop, once. */
  Validity(Loop loop, long deadline, Runnable afterLoss) {
    this.loop = loop;
    this.deadline = deadline;
    this.afterLoss = afterLoss;
  }

  /** Returns how it ended. The deadline counts, not what the loop has seen. */
  synchronized @Nullable End end() {
    if (end == null && Clock.now() >= deadline) {
      lose("validity_over", "no renewal came in time" + doubt);
    }
    return end;
  }

  /** Returns the time until the deadline, rounded down. */
  synchronized Duration remaining() {
    return end() != null
        ? Duration.ZERO
        : Duration.ofNanos(Math.max(0, deadline - Clock.now() - Clock.STEP));
  }

  /** Takes a new deadline from the sidecar. */
  synchronized void prolong(long deadline) {
    if (end == null) {
      this.deadline = deadline;
      doubt = "";
    }
  }

  /** Remembers why no new deadline may come. */
  synchronized void doubt(String why) {
    doubt = ": " + why;
  }

  /** Ends it as lost, unless it has ended. */
  synchronized void lose(String reason, String detail) {
    if (end == null) {
      end = new End(reason, detail);
      loop.execute(afterLoss);
    }
  }

  /** Ends it as released; returns false if it has ended before. */
  synchronized boolean release() {
    if (end() != null) {
      return false;
    }
    end = new End("released", "the app has released the lock");
    isReleased = true;
    return true;
  }

  /** Returns whether {@link #release} ended it. By the sidecar, it can be `released` and lost. */
  synchronized boolean isReleased() {
    return isReleased;
  }

  /** Returns the nanoseconds until the deadline, also after a release. */
  synchronized long nanosLeft() {
    return deadline - Clock.now();
  }

  /** On the loop: ends it at the deadline, also without a call. */
  synchronized void watch() {
    if (end() == null) {
      loop.at(deadline, this::watch);
    }
  }
}
