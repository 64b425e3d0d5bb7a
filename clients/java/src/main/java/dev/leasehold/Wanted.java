package dev.leasehold;

import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
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
  String holdPath() {
    if (!isLead) {
      return "/v1/locks/hold";
    }
    String encoded = URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20");
    return "/v1/elections/" + encoded + "/candidacy";
  }

  /** Returns the time at which the wait is over. */
  long until() {
    long now = Clock.now();
    return waitNanos > Long.MAX_VALUE - now ? Long.MAX_VALUE : now + waitNanos;
  }

  /** Returns what both ways send. */
  Map<String, @Nullable Object> body() {
    Map<String, @Nullable Object> body = new LinkedHashMap<>();
    if (!isLead) {
      body.put("resource", name);
    } else if (isPreferred) {
      body.put("preferred", true);
    }
    if (ownerId != null) {
      body.put("ownerId", ownerId);
    }
    if (!metadata.isEmpty()) {
      body.put("metadata", metadata);
    }
    return body;
  }

  /** Returns the whole seconds until a time, rounded up. */
  static long secondsUntil(long time) {
    long left = Math.max(0, time - Clock.now());
    long seconds = NANOSECONDS.toSeconds(left);
    return left > seconds * 1_000_000_000L ? seconds + 1 : seconds;
  }
}
