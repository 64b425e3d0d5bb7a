import dev.leasehold.Election;
import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import java.time.Duration;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** A leader that works term after term, until its work is done. */
class Leader {
  private static final Iterator<String> WORK = List.of("first", "second").iterator();
  private static final CountDownLatch DONE = new CountDownLatch(1);

  public static void main(String[] arguments) throws InterruptedException {
    try (LeaseholdClient client = LeaseholdClient.create();
        Election election = client.elect("billing", Leader::lead)) {
      DONE.await();
      System.out.println(election.name() + " is done");
    }
  }

  /** Ends when the lead is lost, or asked for. */
  private static void lead(Lease lease) throws InterruptedException {
    while (WORK.hasNext() && !lease.awaitEnd(Duration.ofMillis(100))) {
      System.out.println("does the " + WORK.next() + " piece with " + lease.headers());
    }
    DONE.countDown();
  }
}
