package dev.leasehold;

import java.net.http.HttpResponse.BodyHandler;
import java.net.http.HttpResponse.BodySubscriber;
import java.net.http.HttpResponse.ResponseInfo;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow.Subscription;
import org.jspecify.annotations.Nullable;

/** Brings the body of an answer to the loop, from whichever thread HttpClient uses. */
final class Body implements BodyHandler<Void>, BodySubscriber<Void> {
  private final Exchange exchange;
  private final Loop loop;
  private final CompletableFuture<Void> end = new CompletableFuture<>();
  private @Nullable Subscription subscription;
  private boolean isCancelled;

  Body(Exchange exchange, Loop loop) {
    this.exchange = exchange;
    this.loop = loop;
  }

  @Override
  public BodySubscriber<Void> apply(ResponseInfo info) {
    String type = info.headers().firstValue("Content-Type").orElse("");
    boolean isStream = type.startsWith("text/event-stream");
    loop.execute(() -> exchange.begun(this, info.statusCode(), isStream));
    return this;
  }

  @Override
  public CompletionStage<Void> getBody() {
    return end;
  }

  @Override
  public void onSubscribe(Subscription made) {
    boolean wanted;
    synchronized (this) {
      subscription = made;
      wanted = !isCancelled;
    }
    if (wanted) {
      made.request(Long.MAX_VALUE);
    } else {
      made.cancel();
    }
  }

  /** Closes the connection, unless the whole answer is there. */
  void cancel() {
    Subscription made;
    synchronized (this) {
      isCancelled = true;
      made = subscription;
    }
    if (made != null) {
      made.cancel();
    }
    // HttpClient says nothing after a cancellation, and counts the exchange until its body has
    // ended.
    end.complete(null);
  }

  @Override
  public void onNext(List<ByteBuffer> buffers) {
    for (ByteBuffer buffer : buffers) {
      byte[] bytes = new byte[buffer.remaining()];
      buffer.get(bytes);
      loop.execute(() -> exchange.arrived(this, bytes));
    }
  }

  @Override
  public void onError(Throwable error) {
    loop.execute(() -> exchange.failed(this, error));
    end.completeExceptionally(error);
  }

  @Override
  public void onComplete() {
    loop.execute(() -> exchange.ended(this));
    end.complete(null);
  }
}
