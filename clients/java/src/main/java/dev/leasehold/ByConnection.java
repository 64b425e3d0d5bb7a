package dev.leasehold;

import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * {@code POST /v1/locks/hold}, or a candidacy: the lock is held as long as the connection is open.
 */
final class ByConnection extends Acquisition {
  // A waiting stream has an event at least every 40 s.
  private static final long SILENCE = 90;
  // The API's own bound.
  private static final long LONGEST_WAIT = 604_800;

  ByConnection(Engine engine, Wanted wanted) {
    super(engine, wanted);
  }

  @Override
  void attempt() {
    Map<String, @Nullable Object> body = wanted.body();
    if (!waitsWithoutLimit()) {
      body.put("waitSeconds", secondsLeft(LONGEST_WAIT));
    }
    Request request = Request.post(wanted.holdPath(), body);
    exchange = send(request, Long.MAX_VALUE);
    expectEvent();
  }

  private void expectEvent() {
    stopTimer();
    Exchange expected = exchange;
    if (expected != null) {
      long silence = Math.min(SILENCE, secondsLeft(LONGEST_WAIT) + Http.CALL.toSeconds());
      Problem problem = Problem.noAnswer(http.address() + " did not answer in time");
      next = loop.at(Clock.now() + SECONDS.toNanos(silence), () -> expected.fail(problem));
    }
  }

  @Override
  void withdraw() {
    close();
  }

  @Override
  public void answered(Answer answer) {
    stopTimer();
    super.answered(answer);
  }

  @Override
  public void received(Event event) {
    count(exchange);
    if (lease != null) {
      follow(lease, event);
      return;
    }
    switch (event.name()) {
      case "waiting" -> {
        isAlive();
        expectEvent();
      }
      case "acquired" -> {
        stopTimer();
        if (!granted(event.data())) {
          close();
          refused(Problem.noAnswer("the answer came too late"));
        }
      }
      case "error" -> {
        stopTimer();
        close();
        Long status = event.data().number("status");
        int known = status == null ? 500 : status.intValue();
        refused(Problem.of(http.address(), known, event.data()));
      }
      default -> {
        // Added by a later version.
      }
    }
  }

  /** Reads what it can: closing the connection would release the lock. */
  private void follow(Lease held, Event event) {
    Document data = event.data();
    if (event.name().equals("lost")) {
      held.lose(data.text("reason", "unknown"), data.text("detail", "the lease is over"));
      return;
    }
    if (data.number("validForMs") != null) {
      held.prolong(deadline(data));
    }
    if (event.name().equals("release-requested")) {
      held.askForRelease(ReleaseRequest.of(data));
    }
  }

  @Override
  public void broke(Problem problem) {
    stopTimer();
    if (lease == null) {
      super.broke(problem);
    } else if (problem.code().equals("no_answer")) {
      // The sidecar is gone, and keeps its promise until the deadline.
      lease.doubt(problem.detail());
    } else {
      // This end has closed the connection, so the sidecar releases the lock.
      lease.lose(problem.code(), problem.detail());
    }
  }

  @Override
  void drop(Lease ended) {
    close();
    engine.remove(this);
  }

  private void close() {
    if (exchange != null) {
      exchange.close();
    }
  }
}
