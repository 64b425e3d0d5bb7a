import dev.leasehold.Lease;
import dev.leasehold.LeaseholdException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** Nothing waits for a lock: the blocks are futures. */
final class Futures implements Driver.Style {
  private final Driver driver;
  private final Map<String, Lease> leases = new ConcurrentHashMap<>();

  Futures(Driver driver) {
    this.driver = driver;
  }

  @Override
  public void lock(Driver.Call call) {
    driver
        .client
        .lockAsync(call.text("resource"), call.options())
        .whenComplete(
            (lease, error) -> {
              if (error != null) {
                Driver.refuse(call, (LeaseholdException) error);
              } else {
                leases.put(call.text("lease"), lease);
                Driver.granted(call, lease);
              }
            });
  }

  @Override
  public void tell(Driver.Call call) {
    Lease lease = leases.get(call.text("lease"));
    if (!call.text("call").equals("release")) {
      Driver.ask(lease, call);
      return;
    }
    lease
        .releaseAsync()
        .whenComplete(
            (nothing, error) -> {
              if (error != null) {
                Driver.refuse(call, (LeaseholdException) error);
              } else {
                Driver.answer(call, Map.of());
              }
            });
  }
}
