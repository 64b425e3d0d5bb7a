package dev.leasehold;

import static java.lang.System.Logger.Level.WARNING;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.LinkedHashSet;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** What all locks of a client share: the loop, the connections, and the executor for callbacks. */
final class Engine {
  // The sidecar answers a release within two seconds.
  private static final long CLOSING = SECONDS.toNanos(3);

  private final Loop loop = new Loop(this::endAfterFailure);
  private final Http http;
  private final @Nullable LeaseListener listener;
  private final Executor callbacks;
  private final @Nullable ExecutorService ownCallbacks;
  // On the loop: those that wait, and those that hold a lease.
  private final Set<Acquisition> active = new LinkedHashSet<>();
  private final Set<Call> calls = new LinkedHashSet<>();
  private boolean isEnding;
  private volatile boolean isClosed;

  Engine(Address address, @Nullable LeaseListener listener, @Nullable Executor callbacks) {
    http = new Http(address, loop);
    this.listener = listener;
    if (callbacks == null) {
      ownCallbacks = Executors.newSingleThreadExecutor(Engine::thread);
      this.callbacks = ownCallbacks;
    } else {
      ownCallbacks = null;
      this.callbacks = callbacks;
    }
    loop.start();
  }

  private static Thread thread(Runnable task) {
    Thread thread = new Thread(task, "leasehold-callbacks");
    thread.setDaemon(true);
    return thread;
  }

  Loop loop() {
    return loop;
  }

  Http http() {
    return http;
  }

  /** Begins to acquire a lock. */
  Acquisition acquire(Wanted wanted) {
    mustBeOpen();
    Acquisition acquisition =
        wanted.ttlSeconds() == 0 ? new ByConnection(this, wanted) : new ByRenewal(this, wanted);
    acquisition.start();
    return acquisition;
  }

  /** Waits until there is a lease. If the thread is interrupted, nothing stays held. */
  Lease await(Acquisition acquisition) throws InterruptedException {
    try {
      return acquisition.result.get();
    } catch (InterruptedException interrupted) {
      acquisition.leave();
      if (acquisition.result.isDone() && !acquisition.result.isCompletedExceptionally()) {
        acquisition.result.join().abandon();
      }
      throw interrupted;
    } catch (ExecutionException failed) {
      throw failure(acquisition, failed.getCause());
    }
  }

  /** Returns a new exception, which has the caller's stack trace. */
  private static RuntimeException failure(Acquisition of, @Nullable Throwable cause) {
    Problem problem = of.problem;
    return problem != null ? problem.toException() : new CompletionException(cause);
  }

  /** Returns a future for the app. If the app completes it first, nothing stays held. */
  CompletableFuture<Lease> promise(Acquisition acquisition) {
    CompletableFuture<Lease> promised = new CompletableFuture<>();
    promised.whenComplete((lease, error) -> acquisition.leave());
    acquisition.result.whenComplete(
        (lease, error) -> {
          Runnable fail = () -> promised.completeExceptionally(error);
          if (error != null) {
            if (!call(fail)) {
              fail.run();
            }
          } else if (!call(() -> deliver(promised, lease))) {
            deliver(promised, lease);
          }
        });
    return promised;
  }

  private static void deliver(CompletableFuture<Lease> promised, Lease lease) {
    if (!promised.complete(lease)) {
      lease.abandon();
    }
  }

  /** Calls the app. Returns false if the app's executor refuses the task. */
  boolean call(Runnable task) {
    try {
      callbacks.execute(() -> safely(task));
      return true;
    } catch (RuntimeException refused) {
      Log.LOG.log(WARNING, "the executor for callbacks refuses a task", refused);
      return false;
    }
  }

  private static void safely(Runnable task) {
    try {
      task.run();
    } catch (Throwable failed) {
      Log.LOG.log(WARNING, "a callback failed", failed);
    }
  }

  /** Tells the listener, if there is one. */
  void tell(Consumer<LeaseListener> words) {
    LeaseListener to = listener;
    if (to != null) {
      call(() -> words.accept(to));
    }
  }

  /** On the loop: returns false if the client is closed. */
  boolean add(Acquisition acquisition) {
    return !isClosed && active.add(acquisition);
  }

  /** On the loop. */
  void remove(Acquisition acquisition) {
    active.remove(acquisition);
  }

  /** On the loop: returns false if the client has ended. */
  boolean add(Call call) {
    return !isEnding && calls.add(call);
  }

  /** On the loop: returns false if the call has ended before. */
  boolean remove(Call call) {
    return calls.remove(call);
  }

  void mustBeOpen() {
    if (isClosed) {
      throw new IllegalStateException("this client is closed");
    }
    loop.mustNotBeHere();
  }

  /** Ends all waits and leases, and waits until the sidecar knows, for a bounded time. */
  void close() {
    loop.mustNotBeHere();
    synchronized (this) {
      if (!isClosed) {
        isClosed = true;
        loop.execute(this::beginToClose);
      }
    }
    try {
      if (!loop.hasEndedWithin(2 * CLOSING)) {
        Log.LOG.log(WARNING, "the client did not end in time");
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
    if (ownCallbacks != null) {
      ownCallbacks.shutdown();
    }
  }

  private void beginToClose() {
    Set.copyOf(active).forEach(Acquisition::closeClient);
    // A timer runs after the tasks that the ends of the leases have added.
    loop.at(Clock.now(), this::closeWhenIdle);
    loop.at(Clock.now() + CLOSING, this::end);
  }

  private void closeWhenIdle() {
    if (http.isIdle() && calls.isEmpty()) {
      end();
    } else {
      loop.at(Clock.now() + 10_000_000, this::closeWhenIdle);
    }
  }

  private void endAfterFailure() {
    isClosed = true;
    Set.copyOf(active).forEach(each -> Loop.safely(each::closeClient));
    end();
  }

  private void end() {
    isEnding = true;
    Set.copyOf(calls).forEach(Call::end);
    http.closeAll();
    loop.close();
  }
}
