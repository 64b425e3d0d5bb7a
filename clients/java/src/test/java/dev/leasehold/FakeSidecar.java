package dev.leasehold;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.SECONDS;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * A client, and a server in the place of its sidecar. Requests get the replies in their order.
 * After these, a release succeeds, and others get the last reply again.
 */
final class FakeSidecar implements AutoCloseable {
  /** How the server replies to a request. */
  interface Reply {
    void to(HttpExchange exchange) throws IOException;
  }

  /** A request that the server has received. */
  record Call(String line, Document body) {
    String requestId() {
      return Objects.requireNonNull(body.text("requestId"));
    }
  }

  static final String GRANT =
      "{\"leaseId\":\"l\",\"resource\":\"r\",\"ownerId\":\"o\",\"fencingToken\":7,"
          + "\"validForMs\":60000,\"renewAfterMs\":20000}";
  static final Reply BUSY = answer(503, "{\"code\":\"resuming\",\"detail\":\"it has restarted\"}");
  static final Reply HANG_UP = HttpExchange::close;

  final LeaseholdClient client;
  final BlockingQueue<Call> calls = new LinkedBlockingQueue<>();
  private final HttpServer server;
  private final Reply[] replies;
  private int count;

  FakeSidecar(Reply... replies) throws IOException {
    this.replies = replies;
    InetAddress localhost = InetAddress.getByAddress(new byte[] {127, 0, 0, 1});
    server = HttpServer.create(new InetSocketAddress(localhost, 0), 0);
    server.createContext("/", this::handle);
    server.start();
    client = LeaseholdClient.create("http://127.0.0.1:" + server.getAddress().getPort());
  }

  static Reply answer(int status, String text) {
    return exchange -> {
      byte[] bytes = text.getBytes(UTF_8);
      exchange.sendResponseHeaders(status, bytes.length == 0 ? -1 : bytes.length);
      exchange.getResponseBody().write(bytes);
      exchange.close();
    };
  }

  /** Sends events, each byte as a chunk, and leaves the stream open. */
  static Reply stream(String... events) {
    return exchange -> {
      exchange.getResponseHeaders().set("Content-Type", "text/event-stream");
      exchange.sendResponseHeaders(200, 0);
      for (byte each : String.join("", events).getBytes(UTF_8)) {
        exchange.getResponseBody().write(each);
        exchange.getResponseBody().flush();
      }
    };
  }

  private void handle(HttpExchange exchange) throws IOException {
    String method = exchange.getRequestMethod();
    Document body = Document.parse(exchange.getRequestBody().readAllBytes());
    calls.add(new Call(method + " " + exchange.getRequestURI(), body));
    int number = count++; // The server has one thread.
    boolean succeeds = number >= replies.length && method.equals("DELETE");
    (succeeds ? answer(204, "") : replies[Math.min(number, replies.length - 1)]).to(exchange);
  }

  /** Returns the next request that the server has received. */
  Call next() throws InterruptedException {
    return Objects.requireNonNull(calls.poll(10, SECONDS), "no other request came");
  }

  @Override
  public void close() {
    client.close();
    server.stop(0);
  }
}
