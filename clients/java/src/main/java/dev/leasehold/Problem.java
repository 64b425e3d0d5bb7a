package dev.leasehold;

import org.jspecify.annotations.Nullable;

/** Why a call failed. It becomes an exception in the thread that made the call. */
record Problem(Api.Outcome kind, String code, String detail, @Nullable Holder holder) {
  static final Problem CLIENT_CLOSED =
      new Problem(Api.Outcome.LASTING, "client_closed", "the client is closed", null);

  static Problem passing(String code, String detail) {
    return new Problem(Api.Outcome.PASSING, code, detail, null);
  }

  static Problem noAnswer(String why) {
    return passing("no_answer", why);
  }

  static Problem notASidecar(Address address, String why) {
    String detail = address + " is not a Leasehold sidecar: " + why;
    return new Problem(Api.Outcome.REFUSED, "not_a_sidecar", detail, null);
  }

  /** Returns what a problem document describes. */
  static Problem of(Address address, int status, Document document) {
    String code = document.text("code");
    if (code == null) {
      String detail = address + " answered with status " + status + "; is it a Leasehold sidecar?";
      return new Problem(Api.Outcome.of("", status), "http_" + status, detail, null);
    }
    Api.Outcome kind = Api.Outcome.of(code, status);
    String detail = document.text("detail", "the sidecar answered with status " + status);
    String known = kind == Api.Outcome.LOST ? document.text("reason", code) : code;
    Api.Holder holder = document.record("holder", Api.Holder::of);
    return new Problem(kind, known, detail, holder == null ? null : Holder.of(holder));
  }

  boolean isHeld() {
    return kind == Api.Outcome.HELD;
  }

  boolean isLost() {
    return kind == Api.Outcome.LOST;
  }

  /** Returns whether the same call may succeed within moments. */
  boolean passes() {
    return kind == Api.Outcome.PASSING;
  }

  /** Returns whether the same call may succeed at some time. */
  boolean isUnavailable() {
    return passes() || kind == Api.Outcome.LASTING;
  }

  LeaseholdException toException() {
    return switch (kind) {
      case HELD -> new LockHeldException(detail, code, holder);
      case LOST -> new LockLostException(detail, code);
      case PASSING, LASTING -> new UnavailableException(detail, code);
      case REFUSED -> new RefusedException(detail, code);
    };
  }

  @Override
  public String toString() {
    return detail + " (" + code + ")";
  }
}
