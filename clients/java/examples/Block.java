import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import java.util.List;

/** A guarded block: the work stops when the lock is lost. */
class Block {
  public static void main(String[] arguments) throws InterruptedException {
    try (LeaseholdClient client = LeaseholdClient.create();
        Lease lease = client.lock("billing")) {
      for (String invoice : List.of("a", "b", "c")) {
        lease.check(); // Throws LockLostException.
        System.out.println("charges " + invoice + " with " + lease.headers());
      }
    }
  }
}
