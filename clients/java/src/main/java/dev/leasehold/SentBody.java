package dev.leasehold;

import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.nio.ByteBuffer;
import java.util.concurrent.Flow.Subscriber;

/**
 * A request's body that notes when the request is sent.
 *
 * <p>HttpClient asks for the length when it writes the headers, so no byte is sent before. The
 * first request of a process is prepared for long, since the JDK loads classes, and all validities
 * of a stream would be shorter by this time.
 */
final class SentBody implements BodyPublisher {
  private final BodyPublisher bytes;
  private final int length;
  private volatile long sent = Clock.sent();
  private volatile boolean isSending;

  SentBody(byte[] bytes) {
    this.bytes = BodyPublishers.ofByteArray(bytes);
    length = bytes.length;
  }

  /** Returns when the request was sent, or a little earlier. */
  long sent() {
    return sent;
  }

  /** Returns whether the request may have reached the server. */
  boolean isSending() {
    return isSending;
  }

  @Override
  public long contentLength() {
    // Only the first time is certainly before the headers.
    if (!isSending) {
      isSending = true;
      sent = Clock.sent();
    }
    return length;
  }

  @Override
  public void subscribe(Subscriber<? super ByteBuffer> subscriber) {
    bytes.subscribe(subscriber);
  }
}
