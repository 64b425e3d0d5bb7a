package dev.leasehold.servlet;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.servlet.Servlet;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Path;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.apache.catalina.Context;
import org.apache.catalina.LifecycleException;
import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The filter in Tomcat. */
@Timeout(60)
class FencingFilterTest {
  private static final String MARIADB =
      "(conn=5) CONSTRAINT `stale_fencing_token` failed for `db`.`leasehold_fences`";
  private static final String SQLITE =
      "[SQLITE_CONSTRAINT_TRIGGER] A trigger failed (stale fencing token)";
  private static final String REDIS =
      "STALETOKEN stale fencing token 5 for {report}:fence: the newest is 7.";

  @TempDir Path directory;

  /** What a service does with a request. */
  interface Handler {
    void handle(HttpServletRequest request, HttpServletResponse response)
        throws IOException, ServletException;
  }

  /** A server with the filter before a handler. */
  private final class Service implements AutoCloseable {
    private final Tomcat tomcat = new Tomcat();
    private final HttpClient client = HttpClient.newHttpClient();

    Service(FencingFilter filter, Handler handler) throws Exception {
      tomcat.setBaseDir(directory.toString());
      tomcat.setSilent(true);
      tomcat.setPort(0);
      Context context = tomcat.addContext("", directory.toString());
      FilterDef definition = new FilterDef();
      definition.setFilterName("fencing");
      definition.setFilter(filter);
      context.addFilterDef(definition);
      FilterMap mapping = new FilterMap();
      mapping.setFilterName("fencing");
      mapping.addURLPattern("/*");
      context.addFilterMap(mapping);
      Tomcat.addServlet(context, "handler", servlet(handler)).addMapping("/");
      tomcat.getConnector();
      tomcat.start();
    }

    HttpResponse<String> send(String method, String... tokens) throws Exception {
      URI uri = URI.create("http://localhost:" + tomcat.getConnector().getLocalPort() + "/");
      HttpRequest.Builder request =
          HttpRequest.newBuilder(uri).method(method, BodyPublishers.ofString("body"));
      for (String token : tokens) {
        request.header("x-fencing-token", token);
      }
      return client.send(request.build(), BodyHandlers.ofString());
    }

    @Override
    public void close() throws LifecycleException {
      tomcat.stop();
      tomcat.destroy();
    }
  }

  private static SQLException postgresql() {
    String text = "ERROR: stale fencing token 5 for report: the newest is 7\n  Hint: …";
    return new SQLException(text, "LH001");
  }

  private static Servlet servlet(Handler handler) {
    return new HttpServlet() {
      private static final long serialVersionUID = 1;

      @Override
      protected void service(HttpServletRequest request, HttpServletResponse response)
          throws IOException, ServletException {
        handler.handle(request, response);
      }
    };
  }

  private Service seeing(List<Object> seen, FencingFilter filter) throws Exception {
    return new Service(
        filter,
        (request, response) ->
            seen.add(Optional.ofNullable(request.getAttribute(FencingFilter.TOKEN))));
  }

  private Service throwing(Exception thrown) throws Exception {
    return new Service(
        new FencingFilter(),
        (request, response) -> {
          response.setContentLength(1);
          response.getWriter();
          if (thrown instanceof RuntimeException unchecked) {
            throw unchecked;
          }
          // As Spring's DispatcherServlet does.
          throw new ServletException("Request processing failed: " + thrown.getMessage(), thrown);
        });
  }

  private static void assertAnswered(HttpResponse<String> response, int status, String code) {
    assertEquals(status, response.statusCode(), response.body());
    assertEquals(
        "application/problem+json", response.headers().firstValue("content-type").orElseThrow());
    String start = "{\"type\":\"urn:leasehold:problem:" + code + "\",\"title\":\"Fencing token is ";
    assertTrue(response.body().startsWith(start), response.body());
    String middle = "\",\"status\":" + status + ",\"code\":\"" + code + "\",\"detail\":\"";
    assertTrue(response.body().contains(middle), response.body());
    assertTrue(response.body().endsWith("\"}"), response.body());
  }

  @Test
  void writeWithoutTokenIsRefused() throws Exception {
    List<Object> seen = Collections.synchronizedList(new ArrayList<>());
    try (Service service = seeing(seen, new FencingFilter())) {
      for (String method : List.of("POST", "PUT", "PATCH", "DELETE", "PURGE")) {
        assertAnswered(service.send(method), 428, "token_required");
      }
    }
    assertTrue(seen.isEmpty());
  }

  @Test
  void invalidTokenIsRefused() throws Exception {
    List<Object> seen = Collections.synchronizedList(new ArrayList<>());
    try (Service service = seeing(seen, new FencingFilter())) {
      assertAnswered(service.send("PUT", "1", "1"), 400, "token_invalid");
      assertAnswered(service.send("PUT", "5", "6"), 400, "token_invalid");
      List<String> tokens =
          List.of(
              "",
              "0",
              "-1",
              "+1",
              "01",
              "1e3",
              "1.0",
              "0x10",
              "1_000",
              "5 6",
              "5,6",
              "5;",
              "abc",
              "9007199254740992",
              "9".repeat(4000));
      for (String token : tokens) {
        assertAnswered(service.send("PUT", token), 400, "token_invalid");
      }
    }
    assertTrue(seen.isEmpty());
  }

  @Test
  void handlerSeesToken() throws Exception {
    List<Object> seen = Collections.synchronizedList(new ArrayList<>());
    try (Service service = seeing(seen, new FencingFilter())) {
      for (String token : List.of("1", " 5 ", "9007199254740991")) {
        assertEquals(200, service.send("PUT", token).statusCode());
      }
    }
    List<Object> tokens = List.of(Optional.of(1L), Optional.of(5L), Optional.of(9007199254740991L));
    assertEquals(tokens, seen);
  }

  @Test
  void readNeedsNoToken() throws Exception {
    List<Object> seen = Collections.synchronizedList(new ArrayList<>());
    try (Service service = seeing(seen, new FencingFilter())) {
      for (String method : List.of("GET", "HEAD", "OPTIONS")) {
        assertEquals(200, service.send(method, "not a token").statusCode());
      }
    }
    try (Service service = seeing(seen, new FencingFilter(Set.of("PURGE")))) {
      assertEquals(200, service.send("PURGE").statusCode());
      assertAnswered(service.send("GET"), 428, "token_required");
    }
    assertEquals(Collections.nCopies(4, Optional.empty()), seen);
  }

  @Test
  void refusalOfFenceIsAnswered() throws Exception {
    List<Exception> refusals =
        List.of(
            postgresql(),
            new SQLException(MARIADB, "23000", 4025),
            new SQLException(SQLITE),
            new IllegalStateException(REDIS),
            new IllegalStateException("cannot save:\n" + REDIS, new RuntimeException(REDIS)));
    for (Exception thrown : refusals) {
      try (Service service = throwing(thrown)) {
        HttpResponse<String> response = service.send("PUT", "5");
        assertAnswered(response, 412, "stale_token");
        Throwable cause = thrown.getCause() == null ? thrown : thrown.getCause();
        String text = String.valueOf(cause.getMessage()).lines().findFirst().orElseThrow();
        assertTrue(response.body().endsWith(": " + text + "\"}"), response.body());
      }
    }
  }

  @Test
  void otherExceptionPassesThrough() throws Exception {
    SQLException duplicate = new SQLException("Key (name)=(stale fencing token) exists", "23505");
    RuntimeException circular = new RuntimeException("circular");
    circular.initCause(new RuntimeException(circular));
    List<Exception> others =
        List.of(
            new IllegalStateException("no connection"),
            new IllegalStateException((String) null),
            new SQLException("call leasehold.fence('stale fencing token', token) first", "LH002"),
            duplicate,
            new IllegalStateException(duplicate.getMessage(), duplicate),
            new SQLException("CONSTRAINT `amount` failed for `db`.`ledger`", "23000", 4025),
            circular);
    for (Exception thrown : others) {
      assertEquals(Optional.empty(), FencingFilter.refusal(thrown));
      try (Service service = throwing(thrown)) {
        assertEquals(500, service.send("PUT", "5").statusCode());
      }
    }
  }

  @Test
  void responseThatHasStartedIsLeftAlone() throws Exception {
    Handler handler =
        (request, response) -> {
          response.setContentLength(10);
          response.getOutputStream().write('a');
          response.flushBuffer();
          throw new ServletException(postgresql());
        };
    try (Service service = new Service(new FencingFilter(), handler)) {
      // It ends before its length.
      assertThrows(IOException.class, () -> service.send("PUT", "5"));
    }
  }
}
