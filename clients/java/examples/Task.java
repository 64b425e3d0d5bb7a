import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import dev.leasehold.LockHeldException;
import dev.leasehold.LockOptions;

/** A task that one process runs at a time. Others do not wait for it, and skip it. */
class Task {
  public static void main(String[] arguments) throws InterruptedException {
    try (LeaseholdClient client = LeaseholdClient.create()) {
      try (Lease lease = client.lock("nightly-report", LockOptions.defaults().tryOnce())) {
        System.out.println("reports with " + lease.headers());
        second(client);
      }
    }
  }

  /** Another process would do this. */
  private static void second(LeaseholdClient client) throws InterruptedException {
    try (Lease lease = client.lock("nightly-report", LockOptions.defaults().tryOnce())) {
      System.out.println("reports with " + lease.headers());
    } catch (LockHeldException held) {
      System.out.println("skipped: " + held.detail());
    }
  }
}
