package dev.leasehold;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import org.jspecify.annotations.Nullable;

/** A request that has one answer. All of it is on the loop, unless a method says otherwise. */
final class Call implements Handler {
  private static final long ATTEMPT = SECONDS.toNanos(3);
  private static final long PAUSE = MILLISECONDS.toNanos(200);

  /** Takes the answer, or a problem. */
  interface Outcome {
    void take(@Nullable Answer answer, @Nullable Problem problem);
  }

  private final Engine engine;
  private final Request request;
  private final long until;
  private final boolean isPersistent;
  private final Outcome outcome;

  private Call(
      Engine engine, Request request, long timeout, boolean isPersistent, Outcome outcome) {
    this.engine = engine;
    this.request = request;
    this.until = Clock.now() + timeout;
    this.isPersistent = isPersistent;
    this.outcome = outcome;
  }

  /** Sends a request once. Any thread may call it. */
  static void once(Engine engine, Request request, Outcome outcome) {
    Call call = new Call(engine, request, Http.CALL.toNanos(), false, outcome);
    engine.loop().execute(call::start);
  }

  /** Sends a request until it is answered, or a time is over. Any thread may call it. */
  static void persistently(Engine engine, Request request, long timeout, Outcome outcome) {
    Call call = new Call(engine, request, timeout, true, outcome);
    engine.loop().execute(call::start);
  }

  /** Releases a lease that the app has never had. */
  static void release(Engine engine, String leaseId) {
    // Without an answer the lock is free after its TTL.
    persistently(engine, Request.delete(leaseId), Http.CALL.toNanos(), (answer, problem) -> {});
  }

  private void start() {
    if (engine.add(this)) {
      send();
    } else {
      outcome.take(null, Problem.CLIENT_CLOSED);
    }
  }

  /** The client is closed. */
  void end() {
    if (engine.remove(this)) {
      outcome.take(null, Problem.CLIENT_CLOSED);
    }
  }

  private void send() {
    long end = isPersistent ? Math.min(until, Clock.now() + ATTEMPT) : until;
    engine.http().send(request, end, this);
  }

  @Override
  public void answered(Answer answer) {
    int status = answer.status();
    if (status < 200 || status >= 300) {
      failed(Problem.of(engine.http().address(), status, answer.document()));
    } else if (engine.remove(this)) {
      outcome.take(answer, null);
    }
  }

  @Override
  public void broke(Problem problem) {
    failed(problem);
  }

  private void failed(Problem problem) {
    long next = Clock.now() + PAUSE;
    if (isPersistent && problem.passes() && next < until) {
      engine.loop().at(next, this::send);
    } else if (engine.remove(this)) {
      outcome.take(null, problem);
    }
  }
}
