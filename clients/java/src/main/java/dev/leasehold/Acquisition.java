package dev.leasehold;

import static java.lang.System.Logger.Level.WARNING;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import org.jspecify.annotations.Nullable;

/**
 * Tries until there is a lease, the wait is over, or an error is not worth another try. Then it
 * keeps the lease. All of it is on the loop, unless a method says otherwise.
 *
 * <p>Every validity counts from when the request was sent. The sidecar counts from when it read the
 * request, which is later.
 */
abstract class Acquisition implements Handler {
  // How long a sidecar may be away, or unable to answer, before the caller gets the error. A
  // restart takes a few seconds.
  static final long OUTAGE = SECONDS.toNanos(30);
  private static final long FIRST_PAUSE = MILLISECONDS.toNanos(100);
  private static final long LONGEST_PAUSE = SECONDS.toNanos(2);
  // A server that does not wait for the lock must not be asked without a pause.
  private static final long SHORTEST_POLL = SECONDS.toNanos(1);
  // No validity is longer, and sums of it do not overflow.
  private static final long LONGEST_VALIDITY = 1L << 40;

  final Engine engine;
  final Http http;
  final Loop loop;
  final Wanted wanted;

  /** The lease, or the exception. It may be cancelled by any thread, through {@link #leave}. */
  final CompletableFuture<Lease> result = new CompletableFuture<>();

  /** The time at which the last request was sent. */
  private long sent;

  /** Why there is no lease. It is set before {@link #result} fails. */
  volatile @Nullable Problem problem;

  @Nullable Lease lease;
  @Nullable Exchange exchange;
  Loop.@Nullable Timer next;
  private final long start = Clock.sent();
  private final long until;
  // Without a sign of life since then; 0 while there is no outage.
  private long outageSince;
  private int pauses;

  Acquisition(Engine engine, Wanted wanted) {
    this.engine = engine;
    this.http = engine.http();
    this.loop = engine.loop();
    this.wanted = wanted;
    until = wanted.until();
  }

  /** Begins. Any thread may call it. */
  final void start() {
    loop.execute(
        () -> {
          if (engine.add(this)) {
            begin();
          } else {
            fail(Problem.CLIENT_CLOSED);
          }
        });
  }

  /** The caller does not wait any more, so nothing must stay held. Any thread may call it. */
  final void leave() {
    if (result.cancel(false)) {
      loop.execute(
          () -> {
            stopTimer();
            withdraw();
            engine.remove(this);
          });
    }
  }

  /** A bug must not leave the caller waiting. */
  private void begin() {
    try {
      attempt();
    } catch (RuntimeException bug) {
      Log.LOG.log(WARNING, "lock " + wanted.name() + ": the request cannot be sent", bug);
      fail(new Problem(Api.Outcome.LASTING, "client_failed", bug.toString(), null));
    }
  }

  /** Sends the request. */
  abstract void attempt();

  /** Takes back a request that may still be granted. */
  abstract void withdraw();

  /** The lease has ended: frees what is left of it. */
  abstract void drop(Lease ended);

  @Override
  public void answered(Answer answer) {
    refused(Problem.of(http.address(), answer.status(), answer.document()));
  }

  @Override
  public void broke(Problem why) {
    String advice = "; start the sidecar, or set LEASEHOLD_URL to where it is";
    boolean isOutage = why.code().equals("no_answer");
    refused(isOutage ? Problem.noAnswer(why.detail() + advice) : why);
  }

  /** Tries again, or fails. */
  void refused(Problem why) {
    if (result.isDone()) {
      return;
    }
    long now = Clock.now();
    boolean isOver = isOver(now);
    if (why.isHeld() && !isOver) {
      // One poll is over, not the wait.
      isAlive();
      next = loop.at(Math.max(now, sent + SHORTEST_POLL), this::begin);
      return;
    }
    if (outageSince == 0) {
      outageSince = now;
      pauses = 0;
    }
    if (isOver || !why.passes() || now - outageSince >= OUTAGE) {
      fail(why);
      return;
    }
    if (pauses == 0) {
      Log.LOG.log(WARNING, "lock {0}: trying again: {1}", wanted.name(), why);
    }
    engine.tell(listener -> listener.retried(wanted.name(), why.toException()));
    long pause = Math.min(LONGEST_PAUSE, FIRST_PAUSE << Math.min(pauses, 10));
    pause = ThreadLocalRandom.current().nextLong(pause / 2, pause + 1);
    pauses++;
    next = loop.at(now + pause, this::begin);
  }

  /** The client is closed: ends the wait, or the lease. */
  final void closeClient() {
    if (lease != null) {
      lease.lose("client_closed", "the client is closed");
    } else {
      fail(Problem.CLIENT_CLOSED);
    }
  }

  private void fail(Problem why) {
    problem = why;
    try {
      stopTimer();
      withdraw();
      engine.remove(this);
    } finally {
      result.completeExceptionally(why.toException());
    }
  }

  /** Returns when the last request was sent. */
  final long sent() {
    return sent;
  }

  /** The sidecar has given a sign of life. */
  final void isAlive() {
    outageSince = 0;
  }

  private boolean isOver(long now) {
    return until != Long.MAX_VALUE && now >= until;
  }

  /** Returns the whole seconds to wait, at most those that the API permits. */
  final long secondsLeft(long most) {
    return until == Long.MAX_VALUE ? most : Math.min(most, Wanted.secondsUntil(until));
  }

  final boolean waitsWithoutLimit() {
    return until == Long.MAX_VALUE;
  }

  /** Takes a grant. Returns false if it is over already, or the caller has left. */
  final boolean granted(Api.Acquired granted) {
    if (granted.resource().isEmpty()
        || granted.leaseId().isEmpty()
        || granted.fencingToken() <= 0) {
      throw new Document.UnreadableException("no lease");
    }
    long deadline = after(granted.validForMs());
    Lease made = new Lease(engine, this::drop, granted, deadline);
    if (deadline <= Clock.now() || result.isDone()) {
      return false;
    }
    lease = made;
    if (!result.complete(made)) {
      lease = null;
      return false;
    }
    made.watch();
    Duration waited = Duration.ofNanos(Clock.now() - start);
    engine.tell(listener -> listener.acquired(made, waited));
    return true;
  }

  /** Sends the request for the lock. */
  final Exchange send(Request request, long until) {
    sent = Clock.sent();
    return http.send(request, until, this);
  }

  /** An exchange has been answered: promises count from when its request was sent. */
  final void count(@Nullable Exchange from) {
    if (from != null) {
      sent = from.sent();
    }
  }

  /** Returns a time that an answer to the last request, or an event, gives. */
  final long after(long millis) {
    return sent + MILLISECONDS.toNanos(Math.min(LONGEST_VALIDITY, millis));
  }

  final void stopTimer() {
    if (next != null) {
      next.cancel();
    }
  }

  static long plus(long time, Duration more) {
    return time + more.toNanos();
  }
}
