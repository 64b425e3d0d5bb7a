package dev.leasehold;

import static java.lang.System.Logger.Level.ERROR;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.NANOSECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.PriorityQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import org.jspecify.annotations.Nullable;

/**
 * The thread that does the work for all leases of a client: it runs tasks and timers, one at a
 * time. What is documented as "on the loop" runs there alone, so it needs no lock. The app's own
 * code never runs on it.
 */
final class Loop implements Executor {
  // While the machine sleeps, a timeout stands still and the clock of the deadlines runs.
  private static final long LONGEST_SLEEP = SECONDS.toNanos(1);
  // The clock has steps, so a time can seem to be nearer than it is.
  private static final long SHORTEST_SLEEP = MILLISECONDS.toNanos(2);

  /** A task to run at a time. */
  static final class Timer implements Comparable<Timer> {
    private final long time;
    private @Nullable Runnable task;

    private Timer(long time, Runnable task) {
      this.time = time;
      this.task = task;
    }

    /** On the loop: the task does not run any more. */
    void cancel() {
      task = null;
    }

    @Override
    public int compareTo(Timer other) {
      return Long.compare(time, other.time);
    }
  }

  private final LinkedBlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>();
  private final PriorityQueue<Timer> timers = new PriorityQueue<>();
  private final Object mutex = new Object();
  private final Thread thread = new Thread(this::run, "leasehold");
  private boolean isClosing;
  private boolean hasEnded;
  private final Runnable afterFailure;

  /** If the thread fails, it runs a last task. Nothing may wait for the thread then. */
  Loop(Runnable afterFailure) {
    this.afterFailure = afterFailure;
  }

  void start() {
    thread.setDaemon(true);
    thread.start();
  }

  /** Runs a task on the loop. Any thread may call it. */
  @Override
  public void execute(Runnable task) {
    synchronized (mutex) {
      if (!hasEnded) {
        tasks.add(task);
        return;
      }
    }
    // What HttpClient still has to do for a closed client needs no order.
    safely(task);
  }

  /** On the loop: runs a task at a time of {@link Clock#now}. */
  Timer at(long time, Runnable task) {
    Timer timer = new Timer(time, task);
    timers.add(timer);
    return timer;
  }

  /** On the loop: ends the thread when it has run its tasks. */
  void close() {
    isClosing = true;
  }

  /** Returns whether the thread has ended within a time. */
  boolean hasEndedWithin(long nanos) throws InterruptedException {
    thread.join(NANOSECONDS.toMillis(nanos));
    return !thread.isAlive();
  }

  /** Throws IllegalStateException on the loop, which would wait for itself. */
  void mustNotBeHere() {
    if (Thread.currentThread() == thread) {
      throw new IllegalStateException(
          "a callback must not wait on the client's thread; use another executor for callbacks");
    }
  }

  private void run() {
    try {
      runTasks();
    } catch (Throwable broken) {
      // Without its clock, it cannot tell what is due.
      Log.LOG.log(ERROR, "the client's thread failed, so the client is closed", broken);
      synchronized (mutex) {
        hasEnded = true;
        timers.clear();
      }
      for (Runnable task = tasks.poll(); task != null; task = tasks.poll()) {
        safely(task);
      }
      safely(afterFailure);
    }
  }

  private void runTasks() {
    while (true) {
      Runnable task = next();
      // What has arrived counts before what is overdue: it may prolong a lease.
      while (task != null) {
        safely(task);
        task = tasks.poll();
      }
      runTimers();
      synchronized (mutex) {
        if (isClosing && tasks.isEmpty()) {
          hasEnded = true;
          // HttpClient keeps its executor, and a timer would keep HttpClient.
          timers.clear();
          return;
        }
      }
    }
  }

  private @Nullable Runnable next() {
    try {
      Timer first = timers.peek();
      if (first == null) {
        return tasks.take();
      }
      Runnable task = tasks.poll();
      if (task != null) {
        return task;
      }
      long sleep = first.time - Clock.now();
      if (sleep <= 0) {
        return null;
      }
      sleep = Math.max(SHORTEST_SLEEP, Math.min(LONGEST_SLEEP, sleep));
      return tasks.poll(sleep, NANOSECONDS);
    } catch (InterruptedException notOurs) {
      return null;
    }
  }

  private void runTimers() {
    while (!timers.isEmpty() && timers.peek().task == null) {
      timers.poll();
    }
    if (timers.isEmpty()) {
      return;
    }
    long now = Clock.now();
    while (!timers.isEmpty() && timers.peek().time <= now) {
      Runnable task = timers.poll().task;
      if (task != null) {
        safely(task);
      }
    }
  }

  /** A bug in one task must not end the thread, since all leases depend on it. */
  @SuppressWarnings("CatchAndPrintStackTrace")
  static void safely(Runnable task) {
    try {
      task.run();
    } catch (Throwable bug) {
      Log.LOG.log(ERROR, "a task of the client failed", bug);
    }
  }
}
