import dev.leasehold.Lease;
import dev.leasehold.LeaseholdException;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;

/** Each block is a try-with-resources in a thread of its own. */
final class Blocks implements Driver.Style {
  private final Driver driver;
  private final Map<String, BlockingQueue<Driver.Call>> blocks = new ConcurrentHashMap<>();

  Blocks(Driver driver) {
    this.driver = driver;
  }

  @Override
  public void lock(Driver.Call call) {
    BlockingQueue<Driver.Call> calls = new LinkedBlockingQueue<>();
    blocks.put(call.text("lease"), calls);
    Thread thread = new Thread(() -> block(call, calls));
    thread.setDaemon(true);
    thread.start();
  }

  @Override
  public void tell(Driver.Call call) {
    blocks.get(call.text("lease")).add(call);
  }

  /** A guarded block, which ends with the call "release". */
  private void block(Driver.Call first, BlockingQueue<Driver.Call> calls) {
    Driver.Call call = first;
    try {
      try (Lease lease = driver.client.lock(call.text("resource"), call.options())) {
        Driver.granted(call, lease);
        while (!(call = calls.take()).text("call").equals("release")) {
          Driver.ask(lease, call);
        }
      }
      Driver.answer(call, Map.of());
    } catch (LeaseholdException error) {
      Driver.refuse(call, error);
    } catch (InterruptedException interrupted) {
      throw new IllegalStateException(interrupted);
    }
  }
}
