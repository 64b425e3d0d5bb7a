package dev.leasehold;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import org.jspecify.annotations.Nullable;

/** Calls that have one answer, and how the app waits for them. */
final class Calls {
  private Calls() {}

  /** Takes the answer on the loop: a status below 400, or a problem. */
  interface Outcome {
    void take(int status, @Nullable Problem problem);
  }

  /** Sends a request. Any thread may call it. */
  static void send(Engine engine, Request request, long timeout, Outcome outcome) {
    long until = Clock.now() + timeout;
    Http http = engine.http();
    Handler handler =
        new Handler() {
          @Override
          public void answered(Answer answer) {
            int status = answer.status();
            boolean failed = status < 200 || status >= 300;
            outcome.take(
                status, failed ? Problem.of(http.address(), status, answer.document()) : null);
          }

          @Override
          public void broke(Problem problem) {
            outcome.take(0, problem);
          }
        };
    engine.loop().execute(() -> http.send(request, until, handler));
  }

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
        (nothing, error) ->
            engine.call(
                () -> {
                  if (error == null) {
                    promised.complete(null);
                  } else {
                    promised.completeExceptionally(error);
                  }
                }));
    return promised;
  }
}
