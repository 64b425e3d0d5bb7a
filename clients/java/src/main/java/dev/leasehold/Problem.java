package dev.leasehold;

import java.util.Set;
import org.jspecify.annotations.Nullable;

/** Why a call failed. It becomes an exception in the thread that made the call. */
record Problem(Kind kind, String code, String detail, Document document) {
  enum Kind {
    HELD,
    LOST,
    UNAVAILABLE,
    REFUSED
  }

  // The API server is there, so another try does not help.
  private static final Set<String> REFUSED =
      Set.of("internal", "object_refused", "object_unreadable", "token_exhausted");
  // These do not end within moments.
  private static final Set<String> LASTING =
      Set.of("client_closed", "not_installed", "shutting_down", "store_went_back");

  static final Problem CLIENT_CLOSED = unavailable("client_closed", "the client is closed");

  static Problem unavailable(String code, String detail) {
    return new Problem(Kind.UNAVAILABLE, code, detail, Document.EMPTY);
  }

  static Problem noAnswer(String why) {
    return unavailable("no_answer", why);
  }

  static Problem notASidecar(Address address, String why) {
    String detail = address + " is not a Leasehold sidecar: " + why;
    return new Problem(Kind.REFUSED, "not_a_sidecar", detail, Document.EMPTY);
  }

  /** Returns what a problem document describes. */
  static Problem of(Address address, int status, Document document) {
    String code = document.text("code");
    if (code == null) {
      String detail = address + " answered with status " + status + "; is it a Leasehold sidecar?";
      return new Problem(kind(status, ""), "http_" + status, detail, document);
    }
    Kind kind = kind(status, code);
    String detail = document.text("detail", "the sidecar answered with status " + status);
    return new Problem(
        kind, kind == Kind.LOST ? document.text("reason", code) : code, detail, document);
  }

  private static Kind kind(int status, String code) {
    if (code.equals("lock_held")) {
      return Kind.HELD;
    }
    if (code.equals("lease_lost") || code.equals("lease_unknown")) {
      return Kind.LOST;
    }
    boolean passes = status == 408 || status == 429 || status >= 500;
    return passes && !REFUSED.contains(code) ? Kind.UNAVAILABLE : Kind.REFUSED;
  }

  /** Returns whether the same call may succeed within moments. */
  boolean passes() {
    return kind == Kind.UNAVAILABLE && !LASTING.contains(code);
  }

  LeaseholdException toException() {
    return switch (kind) {
      case HELD -> new LockHeldException(detail, code, holder());
      case LOST -> new LockLostException(detail, code);
      case UNAVAILABLE -> new UnavailableException(detail, code);
      case REFUSED -> new RefusedException(detail, code);
    };
  }

  private @Nullable Holder holder() {
    Document holder = document.document("holder");
    return holder == null ? null : Holder.of(holder);
  }

  @Override
  public String toString() {
    return detail + " (" + code + ")";
  }
}
