package dev.leasehold;

/** The sidecar, or the API server behind it, did not answer in time. A lock is not held then. */
public final class UnavailableException extends LeaseholdException {
  private static final long serialVersionUID = 1;

  UnavailableException(String detail, String code) {
    super(detail, code);
  }
}
