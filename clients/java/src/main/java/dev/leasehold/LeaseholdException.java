package dev.leasehold;

/** An error of Leasehold: what failed, and what to do. */
public abstract sealed class LeaseholdException extends RuntimeException
    permits LockHeldException, LockLostException, RefusedException, UnavailableException {
  private static final long serialVersionUID = 1;

  /** The code. */
  private final String code;

  /** The detail. */
  private final String detail;

  LeaseholdException(String detail, String code) {
    super(detail + " (" + code + ")");
    this.code = code;
    this.detail = detail;
  }

  /**
   * Returns the code of the HTTP API, or {@code no_answer}, {@code not_a_sidecar} or {@code
   * client_closed}. It is stable and meant for programs. Codes may be added.
   *
   * @return the code
   */
  public final String code() {
    return code;
  }

  /**
   * Returns what failed, and what to do, for people.
   *
   * @return the detail
   */
  public final String detail() {
    return detail;
  }
}
