package dev.leasehold;

import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/** How to acquire and hold a lock. Objects are immutable: each method returns a changed copy. */
public final class LockOptions {
  private static final LockOptions DEFAULTS =
      new LockOptions(Wanted.WITHOUT_LIMIT, 0, null, Map.of());

  private final long waitNanos;
  private final long ttlSeconds;
  private final @Nullable String ownerId;
  private final Map<String, String> metadata;

  private LockOptions(
      long waitNanos, long ttlSeconds, @Nullable String ownerId, Map<String, String> metadata) {
    this.waitNanos = waitNanos;
    this.ttlSeconds = ttlSeconds;
    this.ownerId = ownerId;
    this.metadata = metadata;
  }

  /**
   * Returns options that wait without a limit, and hold the lock by a connection.
   *
   * @return the options
   */
  public static LockOptions defaults() {
    return DEFAULTS;
  }

  /**
   * Limits the wait while another caller has the lock.
   *
   * @param wait the longest wait, rounded up to seconds. Zero is one try
   * @return the changed options
   * @throws IllegalArgumentException if it is negative
   */
  public LockOptions waitAtMost(Duration wait) {
    if (wait.isNegative()) {
      throw new IllegalArgumentException("the wait is negative: " + wait);
    }
    return new LockOptions(nanos(wait), ttlSeconds, ownerId, metadata);
  }

  /**
   * Tries once, and does not wait.
   *
   * @return the changed options
   */
  public LockOptions tryOnce() {
    return waitAtMost(Duration.ZERO);
  }

  /**
   * Holds the lock by renewals instead of a connection. Such a lease survives a restart of the
   * sidecar, and a process can have 10,000 instead of 512. When the process ends, the lock is free
   * after this time.
   *
   * @param ttl the silence after which the sidecar releases the lock: 1 to 86,400 seconds, rounded
   *     up to seconds
   * @return the changed options
   * @throws IllegalArgumentException if it is not positive
   */
  public LockOptions ttl(Duration ttl) {
    if (ttl.isNegative() || ttl.isZero()) {
      throw new IllegalArgumentException("the TTL is not positive: " + ttl);
    }
    boolean isWhole = ttl.equals(Duration.ofSeconds(ttl.toSeconds()));
    long seconds = isWhole ? ttl.toSeconds() : Math.addExact(ttl.toSeconds(), 1);
    return new LockOptions(waitNanos, seconds, ownerId, metadata);
  }

  /**
   * Sets the holder's name, which other callers and kubectl show. The default is the pod's name.
   *
   * @param ownerId the name
   * @return the changed options
   */
  public LockOptions ownerId(String ownerId) {
    return new LockOptions(waitNanos, ttlSeconds, Objects.requireNonNull(ownerId), metadata);
  }

  /**
   * Sets what is shown with the holder.
   *
   * @param metadata at most 16 entries
   * @return the changed options
   */
  public LockOptions metadata(Map<String, String> metadata) {
    return new LockOptions(waitNanos, ttlSeconds, ownerId, Map.copyOf(metadata));
  }

  private static long nanos(Duration time) {
    return time.toSeconds() >= Long.MAX_VALUE / 1_000_000_000L
        ? Wanted.WITHOUT_LIMIT
        : time.toNanos();
  }

  long waitNanos() {
    return waitNanos;
  }

  long ttlSeconds() {
    return ttlSeconds;
  }

  @Nullable String ownerId() {
    return ownerId;
  }

  Map<String, String> metadata() {
    return metadata;
  }
}
