package dev.leasehold;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * What travels between an app and its sidecar. A field that an answer lacks is empty, or 0.
 *
 * <p>Generated from docs/openapi.json by {@code make generate}: do not edit it.
 */
final class Api {
  private Api() {}

  /** What an answer means for the app. */
  enum Outcome {
    /** Another caller has the lock. */
    HELD,
    /** The lease is over. */
    LOST,
    /** The same request may succeed soon. */
    PASSING,
    /** Locks are unavailable, and not only for moments. */
    LASTING,
    /** The request, or the installation, must be corrected. */
    REFUSED;

    /** Returns the outcome of a problem. The status decides for a code that is not known. */
    static Outcome of(String code, int status) {
      return switch (code) {
        case "body_too_large" -> REFUSED;
        case "election_invalid" -> REFUSED;
        case "election_unknown" -> REFUSED;
        case "forbidden" -> REFUSED;
        case "host_not_allowed" -> REFUSED;
        case "internal" -> REFUSED;
        case "invalid_request" -> REFUSED;
        case "lease_lost" -> LOST;
        case "lease_unknown" -> LOST;
        case "lock_held" -> HELD;
        case "method_not_allowed" -> REFUSED;
        case "name_collision" -> REFUSED;
        case "not_found" -> REFUSED;
        case "not_installed" -> LASTING;
        case "object_refused" -> REFUSED;
        case "object_unreadable" -> REFUSED;
        case "origin_refused" -> REFUSED;
        case "quota_exceeded" -> REFUSED;
        case "request_id_reused" -> REFUSED;
        case "request_timeout" -> PASSING;
        case "resource_invalid" -> REFUSED;
        case "resuming" -> PASSING;
        case "session_lost" -> PASSING;
        case "shutting_down" -> LASTING;
        case "stale_token" -> REFUSED;
        case "store_unavailable" -> PASSING;
        case "store_went_back" -> LASTING;
        case "token_current" -> REFUSED;
        case "token_exhausted" -> REFUSED;
        case "too_many_leases" -> PASSING;
        case "too_many_streams" -> PASSING;
        case "too_many_waiting" -> PASSING;
        case "ttl_out_of_range" -> REFUSED;
        case "unknown_token" -> REFUSED;
        default -> status == 408 || status == 429 || status >= 500 ? PASSING : REFUSED;
      };
    }
  }

  // A request for a lock.
  record AcquireRequest(
      @Nullable Long keepSeconds,
      @Nullable Map<String, String> metadata,
      @Nullable String ownerId,
      @Nullable String requestId,
      String resource,
      long ttlSeconds,
      @Nullable Long waitSeconds) {
    Document toDocument() {
      Map<String, @Nullable Object> fields = new LinkedHashMap<>();
      if (keepSeconds != null) {
        fields.put("keepSeconds", keepSeconds);
      }
      if (metadata != null) {
        fields.put("metadata", metadata);
      }
      if (ownerId != null) {
        fields.put("ownerId", ownerId);
      }
      if (requestId != null) {
        fields.put("requestId", requestId);
      }
      fields.put("resource", resource);
      fields.put("ttlSeconds", ttlSeconds);
      if (waitSeconds != null) {
        fields.put("waitSeconds", waitSeconds);
      }
      return new Document(fields);
    }
  }

  // The lead of an election for as long as a connection.
  record CandidacyRequest(
      @Nullable Long maxHoldSeconds,
      @Nullable Map<String, String> metadata,
      @Nullable String ownerId,
      @Nullable Boolean preferred) {
    Document toDocument() {
      Map<String, @Nullable Object> fields = new LinkedHashMap<>();
      if (maxHoldSeconds != null) {
        fields.put("maxHoldSeconds", maxHoldSeconds);
      }
      if (metadata != null) {
        fields.put("metadata", metadata);
      }
      if (ownerId != null) {
        fields.put("ownerId", ownerId);
      }
      if (preferred != null) {
        fields.put("preferred", preferred);
      }
      return new Document(fields);
    }
  }

  // Work that has succeeded.
  record CompleteRequest(String key) {
    Document toDocument() {
      Map<String, @Nullable Object> fields = new LinkedHashMap<>();
      fields.put("key", key);
      return new Document(fields);
    }
  }

  // A lock for as long as a connection.
  record HoldRequest(
      @Nullable Long keepSeconds,
      @Nullable Long maxHoldSeconds,
      @Nullable Map<String, String> metadata,
      @Nullable String ownerId,
      String resource,
      @Nullable Long waitSeconds) {
    Document toDocument() {
      Map<String, @Nullable Object> fields = new LinkedHashMap<>();
      if (keepSeconds != null) {
        fields.put("keepSeconds", keepSeconds);
      }
      if (maxHoldSeconds != null) {
        fields.put("maxHoldSeconds", maxHoldSeconds);
      }
      if (metadata != null) {
        fields.put("metadata", metadata);
      }
      if (ownerId != null) {
        fields.put("ownerId", ownerId);
      }
      fields.put("resource", resource);
      if (waitSeconds != null) {
        fields.put("waitSeconds", waitSeconds);
      }
      return new Document(fields);
    }
  }

  // An acquired lock.
  record Acquired(
      String expiresAt,
      long fencingToken,
      String leaseId,
      String ownerId,
      @Nullable ReleaseRequested releaseRequested,
      long renewAfterMs,
      String resource,
      long validForMs,
      boolean acquired,
      List<String> completed,
      boolean replayed) {
    static Acquired of(Document document) {
      return new Acquired(
          document.text("expiresAt", ""),
          document.number("fencingToken", 0),
          document.text("leaseId", ""),
          document.text("ownerId", ""),
          document.record("releaseRequested", ReleaseRequested::of),
          document.number("renewAfterMs", 0),
          document.text("resource", ""),
          document.number("validForMs", 0),
          document.flag("acquired"),
          document.texts("completed"),
          document.flag("replayed"));
    }
  }

  // The lease is still valid.
  record HeartbeatEvent(String expiresAt, long fencingToken, String leaseId, long validForMs) {
    static HeartbeatEvent of(Document document) {
      return new HeartbeatEvent(
          document.text("expiresAt", ""),
          document.number("fencingToken", 0),
          document.text("leaseId", ""),
          document.number("validForMs", 0));
    }
  }

  // The holder of a lock.
  record Holder(
      @Nullable Long fencingToken,
      String heldSince,
      Map<String, String> metadata,
      String ownerId,
      String pod) {
    static Holder of(Document document) {
      return new Holder(
          document.number("fencingToken"),
          document.text("heldSince", ""),
          document.map("metadata"),
          document.text("ownerId", ""),
          document.text("pod", ""));
    }
  }

  // A lease.
  record Lease(
      String expiresAt,
      long fencingToken,
      String leaseId,
      String ownerId,
      @Nullable ReleaseRequested releaseRequested,
      long renewAfterMs,
      String resource,
      long validForMs) {
    static Lease of(Document document) {
      return new Lease(
          document.text("expiresAt", ""),
          document.number("fencingToken", 0),
          document.text("leaseId", ""),
          document.text("ownerId", ""),
          document.record("releaseRequested", ReleaseRequested::of),
          document.number("renewAfterMs", 0),
          document.text("resource", ""),
          document.number("validForMs", 0));
    }
  }

  // The lease has ended. The last event.
  record LostEvent(String detail, String leaseId, String reason) {
    static LostEvent of(Document document) {
      return new LostEvent(
          document.text("detail", ""), document.text("leaseId", ""), document.text("reason", ""));
    }
  }

  // A request to release the lease.
  record ReleaseRequested(String actor, String message, String reason) {
    static ReleaseRequested of(Document document) {
      return new ReleaseRequested(
          document.text("actor", ""), document.text("message", ""), document.text("reason", ""));
    }
  }

  // The app should finish and release the lock.
  record ReleaseRequestedEvent(
      String expiresAt,
      long fencingToken,
      String leaseId,
      long validForMs,
      @Nullable String actor,
      @Nullable String message,
      String reason) {
    static ReleaseRequestedEvent of(Document document) {
      return new ReleaseRequestedEvent(
          document.text("expiresAt", ""),
          document.number("fencingToken", 0),
          document.text("leaseId", ""),
          document.number("validForMs", 0),
          document.text("actor"),
          document.text("message"),
          document.text("reason", ""));
    }
  }
}
