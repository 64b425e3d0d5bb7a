package dev.leasehold;

import static java.lang.System.Logger.Level.WARNING;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.ConnectException;
import java.net.http.HttpResponse;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.jspecify.annotations.Nullable;

/** A request and its answer. All of it is on the loop. */
final class Exchange {
  // An answer or an event of a sidecar has some kilobytes.
  private static final int LARGEST = 1 << 20;

  private final Http http;
  private final Request request;
  private final long start = Clock.sent();
  private @Nullable Handler handler;
  private Loop.@Nullable Timer timer;
  private @Nullable CompletableFuture<HttpResponse<Void>> sent;
  private @Nullable Body body;
  private @Nullable SentBody requestBody;
  private int status;
  private boolean hasBegun;
  private boolean isRepetition;
  private @Nullable EventParser events;
  private final ByteArrayOutputStream whole = new ByteArrayOutputStream();

  Exchange(Http http, Request request, Handler handler) {
    this.http = http;
    this.request = request;
    this.handler = handler;
  }

  /** Fails it at a time. */
  void expectAnswer(long until) {
    if (until != Long.MAX_VALUE) {
      String why = http.address() + " did not answer in time";
      timer = http.loop().at(until, () -> fail(Problem.noAnswer(why)));
    }
  }

  void send() {
    Body made = new Body(this, http.loop());
    body = made;
    CompletableFuture<HttpResponse<Void>> answer;
    try {
      SentBody sending = new SentBody(request.toJson());
      requestBody = sending;
      answer = http.client().sendAsync(http.toHttp(request, sending), made);
    } catch (RuntimeException notARequest) {
      http.loop().execute(() -> failed(made, notARequest));
      return;
    }
    sent = answer;
    // A failure before the body begins comes this way alone.
    answer.whenComplete(
        (response, error) -> {
          if (error != null) {
            http.loop().execute(() -> failed(made, error));
          }
        });
  }

  /** Returns when the request was sent, or a time before. */
  long sent() {
    return requestBody == null ? start : requestBody.sent();
  }

  /** Returns whether the sidecar may have read the request. */
  boolean mayBeRead() {
    return isRepetition || (requestBody != null && requestBody.isSending());
  }

  /** The answer has begun. */
  void begun(Body from, int status, boolean isStream) {
    if (from == body) {
      this.status = status;
      hasBegun = true;
      events = isStream && status == 200 ? new EventParser(this::deliver) : null;
    }
  }

  void arrived(Body from, byte[] bytes) {
    if (from != body || handler == null) {
      return;
    }
    EventParser parser = events;
    if (parser != null) {
      parser.take(bytes);
    } else {
      whole.writeBytes(bytes);
    }
    if (whole.size() > LARGEST || (parser != null && parser.size() > LARGEST)) {
      fail(Problem.notASidecar(http.address(), "its answer is too large"));
    }
  }

  void ended(Body from) {
    if (from != body) {
      return;
    }
    if (events != null) {
      fail(Problem.noAnswer(http.address() + " ended the stream"));
      return;
    }
    Handler to = finish();
    if (to != null) {
      Answer answer = new Answer(status, Document.parse(whole.toByteArray()));
      safely(to, () -> to.answered(answer));
    }
  }

  void failed(Body from, Throwable error) {
    if (from != body || handler == null) {
      return;
    }
    Throwable cause =
        error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
    boolean wasRefused = cause instanceof ConnectException;
    // The sidecar may just have closed a connection that was kept. Each call may be repeated.
    if (cause instanceof IOException && !wasRefused && !hasBegun && !isRepetition) {
      isRepetition = true;
      send();
      return;
    }
    String why = cause.getMessage();
    String words = wasRefused ? "no connection" : why == null ? cause.toString() : why;
    fail(Problem.noAnswer(http.address() + ": " + words));
  }

  private void deliver(Event event) {
    Handler to = handler;
    if (to != null) {
      safely(to, () -> to.received(event));
    }
  }

  private void safely(Handler to, Runnable call) {
    try {
      call.run();
    } catch (Document.UnreadableException error) {
      close();
      to.broke(Problem.notASidecar(http.address(), String.valueOf(error.getMessage())));
    } catch (RuntimeException bug) {
      Log.LOG.log(WARNING, "an answer of " + http.address() + " cannot be used", bug);
      close();
      to.broke(Problem.notASidecar(http.address(), bug.toString()));
    }
  }

  /** Ends it without an answer. Its connection is closed. */
  void close() {
    finish();
    Body old = body;
    body = null;
    if (old != null) {
      old.cancel();
    }
    if (sent != null) {
      sent.cancel(true);
    }
  }

  /** Ends it with an error. */
  void fail(Problem problem) {
    Handler to = finish();
    close();
    if (to != null) {
      to.broke(problem);
    }
  }

  /** Returns the handler once, and nothing after that. */
  private @Nullable Handler finish() {
    Handler last = handler;
    handler = null;
    if (timer != null) {
      timer.cancel();
    }
    http.ended(this);
    return last;
  }
}
