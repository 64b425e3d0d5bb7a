package dev.leasehold;

import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.time.Duration;
import java.util.LinkedHashSet;
import java.util.Set;

/** Sends requests to the sidecar. All of it is on the loop. */
final class Http {
  /** The longest time that a call may take which does not wait for a lock. */
  static final Duration CALL = Duration.ofSeconds(10);

  private final Address address;
  private final Loop loop;
  private final HttpClient client;
  private final Set<Exchange> open = new LinkedHashSet<>();

  Http(Address address, Loop loop) {
    this.address = address;
    this.loop = loop;
    client =
        HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .proxy(HttpClient.Builder.NO_PROXY)
            .executor(loop)
            .build();
  }

  Address address() {
    return address;
  }

  Loop loop() {
    return loop;
  }

  /** Sends a request, and fails it at a time. The handler is called later, not from here. */
  Exchange send(Request request, long until, Handler handler) {
    Exchange exchange = new Exchange(this, request, handler);
    open.add(exchange);
    exchange.start(until);
    return exchange;
  }

  HttpClient client() {
    return client;
  }

  HttpRequest toHttp(Request request, SentBody body) {
    HttpRequest.Builder builder =
        HttpRequest.newBuilder(address.of(request.path()))
            .header("User-Agent", "leasehold-java/" + Version.VERSION)
            .header("Accept", "application/json, text/event-stream");
    if (request.body() != null) {
      builder.header("Content-Type", "application/json");
    }
    return builder.method(request.method(), body).build();
  }

  void ended(Exchange exchange) {
    open.remove(exchange);
  }

  boolean isIdle() {
    return open.isEmpty();
  }

  /** Ends all exchanges without an answer. */
  void closeAll() {
    for (Exchange exchange : Set.copyOf(open)) {
      exchange.close();
    }
  }
}
