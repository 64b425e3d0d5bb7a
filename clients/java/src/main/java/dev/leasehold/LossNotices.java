package dev.leasehold;

import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** What the app wants to happen when a lease is lost. Any thread may call it. */
final class LossNotices {
  private final Engine engine;
  // All that follows is guarded by this.
  private boolean lossIsKnown;
  private final List<Runnable> callbacks = new ArrayList<>();
  private @Nullable Thread toInterrupt;
  private boolean hasInterrupted;

  LossNotices(Engine engine) {
    this.engine = engine;
  }

  /** Calls a function at the loss, or at once after it. */
  void add(Runnable callback) {
    synchronized (this) {
      if (!lossIsKnown) {
        callbacks.add(callback);
        return;
      }
    }
    engine.call(callback);
  }

  /** Interrupts the calling thread at the loss, or at once after it. */
  synchronized void interruptThisThread() {
    toInterrupt = Thread.currentThread();
    if (lossIsKnown) {
      interrupt();
    }
  }

  /** No interrupt may follow the block. */
  synchronized void disarm() {
    if (hasInterrupted && toInterrupt == Thread.currentThread()) {
      Thread.interrupted();
      hasInterrupted = false;
    }
    toInterrupt = null;
  }

  /** The lease is lost: interrupts the thread, and returns what to call. */
  synchronized List<Runnable> take() {
    lossIsKnown = true;
    List<Runnable> toCall = List.copyOf(callbacks);
    callbacks.clear();
    interrupt();
    return toCall;
  }

  private void interrupt() {
    if (toInterrupt != null && !hasInterrupted) {
      toInterrupt.interrupt();
      hasInterrupted = true;
    }
  }
}
