import dev.leasehold.Election;
import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import dev.leasehold.LeaseholdException;
import dev.leasehold.LockHeldException;
import dev.leasehold.LockLostException;
import dev.leasehold.LockOptions;
import dev.leasehold.RefusedException;
import dev.leasehold.UnavailableException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Does what the conformance suite says (clients/README.md): calls are lines of JSON on the standard
 * input, answers are lines on the standard output.
 *
 * <p>java Driver blocks|futures URL
 */
final class Driver {
  /** How the guarded blocks of a style run. */
  interface Style {
    /** Enters a block. */
    void lock(Call call);

    /** Does a call about the lease of a block. */
    void tell(Call call);
  }

  /** A call of the suite. */
  record Call(Map<String, Object> fields) {
    long id() {
      return ((Number) fields.get("id")).longValue();
    }

    String text(String name) {
      return (String) fields.get(name);
    }

    Optional<Double> number(String name) {
      return Optional.ofNullable((Double) fields.get(name));
    }

    Duration seconds(String name) {
      return Duration.ofMillis((long) (number(name).orElseThrow() * 1000));
    }

    LockOptions options() {
      LockOptions options = LockOptions.defaults();
      if (number("wait").isPresent()) {
        options = options.waitAtMost(seconds("wait"));
      }
      return number("ttl").isPresent() ? options.ttl(seconds("ttl")) : options;
    }
  }

  private static final PrintStream OUTPUT =
      new PrintStream(System.out, true, StandardCharsets.UTF_8);

  final LeaseholdClient client;
  private final Map<String, Election> elections = new HashMap<>();
  private final List<Lease> many = new ArrayList<>();

  private Driver(LeaseholdClient client) {
    this.client = client;
  }

  public static void main(String[] arguments) throws Exception {
    Driver driver = new Driver(LeaseholdClient.create(arguments[1]));
    Style style = arguments[0].equals("blocks") ? new Blocks(driver) : new Futures(driver);
    String version = LeaseholdClient.version();
    say(Map.of("version", version));
    driver.run(style);
  }

  private void run(Style style) throws Exception {
    InputStreamReader input = new InputStreamReader(System.in, StandardCharsets.UTF_8);
    BufferedReader lines = new BufferedReader(input);
    String line;
    while ((line = lines.readLine()) != null) {
      Call call = new Call(Json.parse(line));
      switch (call.text("call")) {
        case "lock" -> style.lock(call);
        case "many" -> many(call);
        case "check-many" ->
            answer(call, Map.of("held", many.stream().filter(Lease::isHeld).count()));
        case "elect", "leads", "step-down" -> elect(call);
        case "busy" -> {
          Thread.sleep(call.seconds("seconds").toMillis());
          answer(call, Map.of());
        }
        case "start" -> start(call);
        case "round" -> round(call);
        default -> style.tell(call);
      }
    }
  }

  private void many(Call call) throws InterruptedException {
    for (int number = 0; number < call.number("count").orElseThrow(); number++) {
      many.add(client.lock(call.text("resource") + "-" + number, call.options()));
    }
    answer(call, Map.of("held", many.size()));
  }

  /** Measures one lock and unlock. */
  private void round(Call call) throws InterruptedException {
    long start = System.nanoTime();
    try (Lease lease = client.lock(call.text("resource"), call.options())) {
      lease.check();
    }
    answer(call, Map.of("ms", (System.nanoTime() - start) / 1e6));
  }

  /** Becomes a candidate, or says whether it leads. */
  private void elect(Call call) {
    String name = call.text("election");
    switch (call.text("call")) {
      case "elect" -> {
        elections.put(name, client.elect(name));
        answer(call, Map.of());
      }
      case "leads" -> {
        Optional<Lease> lease = elections.get(name).lease();
        boolean leads = lease.isPresent() && elections.get(name).isLeader();
        answer(
            call,
            leads ? Map.of("leads", true, "token", lease.get().token()) : Map.of("leads", false));
      }
      default -> {
        elections.remove(name).stop();
        answer(call, Map.of());
      }
    }
  }

  /** Starts a program that outlives the driver. */
  private static void start(Call call) throws IOException {
    Process program =
        new ProcessBuilder("sleep", "120")
            .redirectOutput(ProcessBuilder.Redirect.DISCARD)
            .redirectError(ProcessBuilder.Redirect.DISCARD)
            .start();
    answer(call, Map.of("pid", program.pid()));
  }

  /** Answers what concerns one lease. */
  static void ask(Lease lease, Call call) {
    try {
      switch (call.text("call")) {
        case "check" -> {
          lease.check();
          answer(call, Map.of("remaining", lease.remaining().toNanos() / 1e9));
        }
        case "headers" -> answer(call, Map.of("headers", lease.headers()));
        default -> throw new IllegalArgumentException(call.toString());
      }
    } catch (LeaseholdException error) {
      refuse(call, error);
    }
  }

  static void granted(Call call, Lease lease) {
    lease.onLost(
        lost -> say(Map.of("lost", call.text("lease"), "reason", lost.reason().orElseThrow())));
    answer(call, Map.of("token", lease.token(), "leaseId", lease.leaseId()));
  }

  /** Answers a call. */
  static void answer(Call call, Map<String, ?> values) {
    Map<String, Object> line = new HashMap<>(values);
    line.put("id", call.id());
    say(line);
  }

  /** Answers a call with an error. */
  static void refuse(Call call, LeaseholdException error) {
    String kind = "";
    if (error instanceof LockHeldException) {
      kind = "held";
    } else if (error instanceof LockLostException) {
      kind = "lost";
    } else if (error instanceof UnavailableException) {
      kind = "unavailable";
    } else if (error instanceof RefusedException) {
      kind = "refused";
    }
    answer(call, Map.of("error", kind, "code", error.code(), "detail", error.detail()));
  }

  private static void say(Map<String, ?> line) {
    try {
      String text = Json.write(line);
      // A line is printed as a whole.
      synchronized (OUTPUT) {
        OUTPUT.println(text);
      }
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }
}
