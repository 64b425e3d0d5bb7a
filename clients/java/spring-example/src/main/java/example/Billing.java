package example;

import static java.time.temporal.ChronoUnit.MINUTES;

import dev.leasehold.Lease;
import java.time.Instant;
import java.util.List;
import org.springframework.scheduling.annotation.Scheduled;

/** Bills each minute once, in one of the pods. */
class Billing {
  @Scheduled(cron = "0 * * * * *")
  @Locked("billing-close")
  public void close() throws InterruptedException {
    Lease lease = LockedMethods.lease();
    String minute = Instant.now().truncatedTo(MINUTES).toString();
    // This pod may be late, and another one may have finished already.
    if (lease.completed().contains(minute)) {
      return;
    }
    for (String invoice : List.of("a", "b", "c", "d", "e")) {
      // A write sends the token. After a loss, the lease throws LockLostException instead.
      System.out.println("bills " + invoice + " with " + lease.headers());
      Thread.sleep(1_000);
    }
    lease.complete(minute);
  }
}
