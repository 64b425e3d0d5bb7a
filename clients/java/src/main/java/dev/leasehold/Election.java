package dev.leasehold;

import static java.lang.System.Logger.Level.ERROR;
import static java.lang.System.Logger.Level.INFO;
import static java.lang.System.Logger.Level.WARNING;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.Optional;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import org.jspecify.annotations.Nullable;

/** Runs for an election until {@link #stop}, or the end of a try block. It has a thread. */
public final class Election implements AutoCloseable {
  // Between two terms, and after an outage that was too long.
  private static final long PAUSE_SECONDS = 1;

  private final Engine engine;
  private final Wanted wanted;
  private final @Nullable LeaderTask leader;
  private final Thread thread;
  private final CompletableFuture<Void> stopped = new CompletableFuture<>();
  private volatile @Nullable Problem failure;
  private volatile @Nullable Lease lease;
  private @Nullable Acquisition acquisition; // Guarded by this.

  Election(Engine engine, Wanted wanted, @Nullable LeaderTask leader) {
    this.engine = engine;
    this.wanted = wanted;
    this.leader = leader;
    thread = new Thread(this::run, "leasehold-" + wanted.name());
    thread.setDaemon(true);
  }

  void start() {
    thread.start();
  }

  /**
   * Returns the election's name.
   *
   * @return the name
   */
  public String name() {
    return wanted.name();
  }

  /**
   * Returns whether this process leads now. It sends no request: the lease's own deadline decides.
   * Send the lease's token with each write as the leader all the same.
   *
   * @return whether it leads
   * @throws LeaseholdException the error that ended the candidacy, for example for an invalid name
   */
  public boolean isLeader() {
    return lease().isPresent();
  }

  /**
   * Returns the lead while this process leads.
   *
   * @return the lead, or nothing
   * @throws LeaseholdException the error that ended the candidacy, for example for an invalid name
   */
  public Optional<Lease> lease() {
    Problem ended = failure;
    if (ended != null) {
      throw ended.toException();
    }
    return Optional.ofNullable(lease).filter(Lease::isHeld);
  }

  /**
   * Steps down, and ends the candidacy. A {@link LeaderTask} finds the request in {@link
   * Lease#releaseRequested}, and this method waits until it has returned. If the waiting thread is
   * interrupted, it does not wait any longer.
   */
  public void stop() {
    engine.loop().mustNotBeHere();
    synchronized (this) {
      stopped.complete(null);
      if (acquisition != null) {
        acquisition.leave();
      }
      Lease led = lease;
      if (led != null) {
        led.askForRelease(new ReleaseRequest("stopped", null, null));
      }
    }
    if (Thread.currentThread() != thread) {
      try {
        thread.join();
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Does what {@link #stop} does. */
  @Override
  public void close() {
    stop();
  }

  private void run() {
    while (!stopped.isDone()) {
      Lease led;
      try {
        led = acquire();
      } catch (IllegalStateException ended) {
        // Stopped (a CancellationException), or the client is closed.
        return;
      } catch (ExecutionException failed) {
        if (!mayGoOn()) {
          return;
        }
        pause();
        continue;
      } catch (InterruptedException stray) {
        continue;
      }
      Log.LOG.log(INFO, "leads {0} with token {1}", name(), Long.toString(led.token()));
      serve(led);
      // A leader that returns at once must not flood the API server with terms.
      pause();
    }
  }

  private Lease acquire() throws ExecutionException, InterruptedException {
    Acquisition made;
    synchronized (this) {
      if (stopped.isDone()) {
        throw new CancellationException();
      }
      made = engine.acquire(wanted);
      acquisition = made;
    }
    Lease led;
    try {
      led = made.result.get();
    } catch (InterruptedException stray) {
      made.leave();
      if (made.result.isDone() && !made.result.isCompletedExceptionally()) {
        made.result.join().abandon();
      }
      throw stray;
    }
    synchronized (this) {
      lease = led;
      if (stopped.isDone()) {
        led.askForRelease(new ReleaseRequest("stopped", null, null));
      }
    }
    return led;
  }

  /** The candidacy has failed. Returns whether to try again. */
  private boolean mayGoOn() {
    Acquisition failed = acquisition;
    Problem problem = failed == null ? null : failed.problem;
    if (problem == null || problem.equals(Problem.CLIENT_CLOSED)) {
      return false;
    }
    if (problem.isUnavailable()) {
      Log.LOG.log(WARNING, "election {0}: {1}", name(), problem);
      return true;
    }
    Log.LOG.log(ERROR, "candidacy for {0} ended: {1}", name(), problem);
    failure = problem;
    return false;
  }

  private void serve(Lease led) {
    try (led) {
      if (stopped.isDone()) {
        return;
      }
      if (leader != null) {
        led.interruptOnLoss();
        leader.lead(led);
      } else {
        CompletableFuture.anyOf(led.over, stopped).join();
      }
    } catch (LockLostException | InterruptedException lost) {
      Log.LOG.log(INFO, "lead of {0} ended: {1}", name(), String.valueOf(lost.getMessage()));
    } catch (Throwable failed) {
      Log.LOG.log(ERROR, "the leader of " + name() + " failed", failed);
    } finally {
      lease = null;
    }
  }

  private void pause() {
    try {
      stopped.get(PAUSE_SECONDS, SECONDS);
    } catch (InterruptedException | ExecutionException | TimeoutException over) {
      // The pause is over.
    }
  }
}
