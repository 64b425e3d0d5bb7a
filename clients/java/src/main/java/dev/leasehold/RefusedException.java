package dev.leasehold;

/** The sidecar refused the request; the detail says what to correct. */
public final class RefusedException extends LeaseholdException {
  private static final long serialVersionUID = 1;

  RefusedException(String detail, String code) {
    super(detail, code);
  }
}
