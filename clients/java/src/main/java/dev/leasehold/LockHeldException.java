package dev.leasehold;

import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** Another caller has the lock, and the wait is over. */
public final class LockHeldException extends LeaseholdException {
  private static final long serialVersionUID = 1;

  private final transient @Nullable Holder holder;

  LockHeldException(String detail, String code, @Nullable Holder holder) {
    super(detail, code);
    this.holder = holder;
  }

  /**
   * Returns the holder, if it is known.
   *
   * @return the holder
   */
  public Optional<Holder> holder() {
    return Optional.ofNullable(holder);
  }
}
