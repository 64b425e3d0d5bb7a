package dev.leasehold;

/** The work of a leader. */
@FunctionalInterface
public interface LeaderTask {
  /**
   * Does the leader's work during one term. When it returns, the process steps down, and is a
   * candidate again.
   *
   * <p>It must return soon after the lead is lost or its release is requested: {@link
   * Lease#awaitEnd} tells it. When the lead is lost, its thread is also interrupted.
   *
   * @param lease the lead
   * @throws Exception if the work fails. It is logged, and the process steps down
   */
  void lead(Lease lease) throws Exception;
}
