package dev.leasehold;

/**
 * The lease is over: stop what the lock guards, since another holder may already have the lock. The
 * code is the reason.
 */
public final class LockLostException extends LeaseholdException {
  private static final long serialVersionUID = 1;

  LockLostException(String detail, String code) {
    super(detail, code);
  }
}
