package dev.leasehold;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.time.Duration;
import java.util.UUID;

/**
 * {@code POST /v1/locks/acquire}, then {@code renew} in time. No connection stays open, and the
 * lease survives a restart of the sidecar alone.
 */
final class ByRenewal extends Acquisition {
  // The API's own bound for a long poll.
  private static final long LONGEST_POLL = 240;
  private static final long SHORTEST_PAUSE = MILLISECONDS.toNanos(50);
  private static final long LONGEST_PAUSE = MILLISECONDS.toNanos(1_000);

  private String requestId = UUID.randomUUID().toString();
  // A request with this id had no answer, and may have been granted.
  private boolean isUncertain;

  ByRenewal(Engine engine, Wanted wanted) {
    super(engine, wanted);
  }

  @Override
  void attempt() {
    long poll = secondsLeft(LONGEST_POLL);
    long until = plus(Clock.now(), Http.CALL.plusSeconds(poll));
    exchange = send(wanted.toAcquire(requestId, poll), until);
  }

  /** Asks for the answer that may have been lost, and releases what it grants. */
  @Override
  void withdraw() {
    Exchange waiting = exchange;
    exchange = null;
    if (waiting != null) {
      waiting.close();
    } else if (!isUncertain) {
      return;
    }
    isUncertain = false;
    giveBack(false);
  }

  /**
   * It also ends the queue entry that the sidecar keeps for a caller that hangs up. A request that
   * the sidecar reads before the hang-up ends nothing, so a second one follows.
   */
  private void giveBack(boolean isSecond) {
    Call.persistently(
        engine,
        wanted.toAcquire(requestId, 0),
        Http.CALL.toNanos(),
        (answer, problem) -> {
          String leaseId = answer == null ? "" : Api.Acquired.of(answer.document()).leaseId();
          if (!leaseId.isEmpty()) {
            Call.release(engine, leaseId);
          } else if (problem != null && problem.isHeld() && !isSecond) {
            loop.at(Clock.now() + LONGEST_PAUSE, () -> giveBack(true));
          }
        });
  }

  @Override
  public void answered(Answer answer) {
    Document document = answer.document();
    count(exchange);
    exchange = null;
    Problem why = Problem.of(http.address(), answer.status(), document);
    if (!why.isUnavailable()) {
      // One that could not be served says nothing of an earlier request.
      isUncertain = false;
    }
    if (answer.status() != 200) {
      super.answered(answer);
      return;
    }
    Api.Acquired acquired = Api.Acquired.of(document);
    if (granted(acquired)) {
      renewAfter(acquired.renewAfterMs());
    } else {
      Call.release(engine, acquired.leaseId());
      requestId = UUID.randomUUID().toString();
      refused(Problem.noAnswer("the answer came too late"));
    }
  }

  @Override
  public void broke(Problem why) {
    if (!why.isUnavailable()) {
      // Another server has answered.
      isUncertain = false;
    } else if (exchange != null && exchange.mayBeRead()) {
      isUncertain = true;
    }
    exchange = null;
    super.broke(why);
  }

  @Override
  void refused(Problem why) {
    switch (why.kind()) {
      case HELD -> {
        requestId = UUID.randomUUID().toString();
        super.refused(why);
      }
      case LOST -> {
        // An earlier answer did not arrive, and its lease has ended.
        requestId = UUID.randomUUID().toString();
        super.refused(Problem.passing(why.code(), why.detail()));
      }
      default -> {
        if (Clock.now() - sent() > OUTAGE) {
          // The sidecar was there for most of this try.
          isAlive();
        }
        super.refused(why);
      }
    }
  }

  private void renewAfter(long millis) {
    next = loop.at(Math.max(after(millis), Clock.now() + SHORTEST_PAUSE), this::renew);
  }

  private void renew() {
    Lease held = lease;
    if (held == null) {
      return;
    }
    Duration remaining = held.remaining();
    if (!held.isHeld()) {
      return;
    }
    // Leaves time for another try.
    Duration half = remaining.dividedBy(2);
    Duration timeout = half.compareTo(Http.CALL) < 0 ? half : Http.CALL;
    Request request = Request.post("/v1/locks/" + held.leaseId() + "/renew", Document.EMPTY);
    exchange = http.renew(request, plus(Clock.now(), timeout), new Renewal(held));
  }

  private final class Renewal implements Handler {
    private final Lease held;

    Renewal(Lease held) {
      this.held = held;
    }

    @Override
    public void answered(Answer answer) {
      Document document = answer.document();
      if (answer.status() == 200) {
        Api.Lease renewed = Api.Lease.of(document);
        if (renewed.leaseId().isEmpty()) {
          throw new Document.UnreadableException("no leaseId");
        }
        count(exchange);
        held.prolong(after(renewed.validForMs()));
        Api.ReleaseRequested request = renewed.releaseRequested();
        if (request != null) {
          held.askForRelease(ReleaseRequest.of(request));
        }
        renewAfter(renewed.renewAfterMs());
        return;
      }
      Problem problem = Problem.of(http.address(), answer.status(), document);
      if (problem.isLost()) {
        held.lose(problem.code(), problem.detail());
      } else {
        broke(problem);
      }
    }

    /** The last validity still counts. */
    @Override
    public void broke(Problem problem) {
      held.doubt(problem.toString());
      long quarter = held.remaining().toNanos() / 4;
      long pause = Math.min(LONGEST_PAUSE, Math.max(SHORTEST_PAUSE, quarter));
      next = loop.at(Clock.now() + pause, ByRenewal.this::renew);
    }
  }

  @Override
  void drop(Lease ended) {
    stopTimer();
    if (exchange != null) {
      exchange.close();
    }
    if (ended.wasLost()) {
      Call.release(engine, ended.leaseId());
    }
    engine.remove(this);
  }
}
