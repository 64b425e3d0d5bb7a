package dev.leasehold;

import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * What to acquire.
 *
 * @param name the resource, or the name of the election
 * @param waitNanos how long to wait; {@code Long.MAX_VALUE} waits without a limit, 0 is one try
 * @param ttlSeconds the silence after which the sidecar releases the lock; 0 holds it by a
 *     connection
 */
record Wanted(
    String name,
    long waitNanos,
    long ttlSeconds,
    @Nullable String ownerId,
    Map<String, String> metadata,
    boolean isLead,
    boolean isPreferred) {

  static final long WITHOUT_LIMIT = Long.MAX_VALUE;

  Wanted {
    Objects.requireNonNull(name, "name");
  }

  static Wanted lock(String resource, LockOptions options) {
    return new Wanted(
        resource,
        options.waitNanos(),
        options.ttlSeconds(),
        options.ownerId(),
        options.metadata(),
        false,
        false);
  }

  static Wanted lead(String election, LeadOptions options) {
    return new Wanted(
        election,
        WITHOUT_LIMIT,
        0,
        options.ownerId(),
        options.metadata(),
        true,
        options.isPreferred());
  }

  /** Returns the call that holds it by a connection. */
  Request toHold(@Nullable Long waitSeconds) {
    if (!isLead) {
      return Request.post(
          "/v1/locks/hold",
          new Api.HoldRequest(null, null, shown(), ownerId, name, waitSeconds).toDocument());
    }
    String encoded = URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20");
    return Request.post(
        "/v1/elections/" + encoded + "/candidacy",
        new Api.CandidacyRequest(null, shown(), ownerId, isPreferred ? true : null).toDocument());
  }

  /** Returns the call that acquires it for renewals. */
  Request toAcquire(String requestId, long waitSeconds) {
    return Request.post(
        "/v1/locks/acquire",
        new Api.AcquireRequest(null, shown(), ownerId, requestId, name, ttlSeconds, waitSeconds)
            .toDocument());
  }

  private @Nullable Map<String, String> shown() {
    return metadata.isEmpty() ? null : metadata;
  }

  /** Returns the time at which the wait is over. */
  long until() {
    long now = Clock.now();
    return waitNanos > Long.MAX_VALUE - now ? Long.MAX_VALUE : now + waitNanos;
  }

  /** Returns the whole seconds until a time, rounded up. */
  static long secondsUntil(long time) {
    long left = Math.max(0, time - Clock.now());
    long seconds = NANOSECONDS.toSeconds(left);
    return left > seconds * 1_000_000_000L ? seconds + 1 : seconds;
  }
}
