package dev.leasehold;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

/** How the app waits for a call. */
final class Waits {
  private Waits() {}

  /** Waits for a call that has a timeout. An interrupt does not end the wait, and is kept. */
  static void join(CompletableFuture<Void> call) {
    boolean wasInterrupted = false;
    try {
      while (true) {
        try {
          call.get();
          return;
        } catch (InterruptedException interrupted) {
          wasInterrupted = true;
        } catch (ExecutionException failed) {
          throw withThisStack(failed);
        }
      }
    } finally {
      if (wasInterrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Returns a new exception, since several threads may wait for one call. */
  private static RuntimeException withThisStack(ExecutionException failed) {
    Throwable cause = failed.getCause();
    if (cause instanceof LockLostException lost) {
      return new LockLostException(lost.detail(), lost.code());
    }
    if (cause instanceof RuntimeException other) {
      other.fillInStackTrace();
      return other;
    }
    return new IllegalStateException(cause);
  }

  /** Returns a future whose dependent actions run on the executor for callbacks. */
  static CompletableFuture<Void> forApp(Engine engine, CompletableFuture<Void> call) {
    CompletableFuture<Void> promised = new CompletableFuture<>();
    call.whenComplete(
        (nothing, error) -> {
          Runnable complete =
              () -> {
                if (error == null) {
                  promised.complete(null);
                } else {
                  promised.completeExceptionally(error);
                }
              };
          if (!engine.call(complete)) {
            complete.run();
          }
        });
    return promised;
  }
}
