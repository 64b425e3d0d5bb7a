package dev.leasehold;

import static java.util.concurrent.TimeUnit.SECONDS;

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
    Long wait = waitsWithoutLimit() ? null : Long.valueOf(secondsLeft(LONGEST_WAIT));
    exchange = send(wanted.toHold(wait), Long.MAX_VALUE);
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
        if (!granted(Api.Acquired.of(event.data()))) {
          close();
          refused(Problem.noAnswer("the answer came too late"));
        }
      }
      case "error" -> {
        stopTimer();
        close();
        int status = (int) event.data().number("status", 500);
        refused(Problem.of(http.address(), status, event.data()));
      }
      default -> {
        // Added by a later version.
      }
    }
  }

  /** Reads what it can: closing the connection would release the lock. */
  private void follow(Lease held, Event event) {
    if (event.name().equals("lost")) {
      Api.LostEvent lost = Api.LostEvent.of(event.data());
      held.lose(lost.reason(), lost.detail());
      return;
    }
    // The other events are the same, with fewer fields.
    Api.ReleaseRequestedEvent alive = Api.ReleaseRequestedEvent.of(event.data());
    if (alive.validForMs() > 0) {
      held.prolong(after(alive.validForMs()));
    }
    if (event.name().equals("release-requested")) {
      held.askForRelease(ReleaseRequest.of(alive.reason(), alive.actor(), alive.message()));
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
