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
  // After a pause of the process, many renewals are due at once. A connection for each would cost
  // more time than the leases have left.
  private static final int MOST_RENEWALS = 16;

  private final Set<Exchange> open = new LinkedHashSet<>();
  private final Set<Exchange> renewing = new LinkedHashSet<>();
  private final Set<Exchange> toRenew = new LinkedHashSet<>();

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
    exchange.expectAnswer(until);
    exchange.send();
    return exchange;
  }

  /** Does what {@link #send} does, as soon as fewer renewals are under way. */
  Exchange renew(Request request, long until, Handler handler) {
    Exchange exchange = new Exchange(this, request, handler);
    open.add(exchange);
    exchange.expectAnswer(until);
    toRenew.add(exchange);
    renewMore();
    return exchange;
  }

  private void renewMore() {
    while (renewing.size() < MOST_RENEWALS && !toRenew.isEmpty()) {
      Exchange next = toRenew.iterator().next();
      toRenew.remove(next);
      renewing.add(next);
      next.send();
    }
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
    toRenew.remove(exchange);
    if (renewing.remove(exchange)) {
      renewMore();
    }
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
