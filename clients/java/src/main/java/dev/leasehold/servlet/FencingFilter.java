package dev.leasehold.servlet;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Pattern;

/**
 * A filter that requires a fencing token for each write. A handler finds it in the request
 * attribute {@link #TOKEN}, as a {@link Long}, and passes it to the fence of its database, first in
 * its transaction.
 *
 * <p>A request without a token is answered with 428, one whose token is not valid with 400, and one
 * whose handler throws a fence's refusal with 412. Other exceptions pass through, and so does each
 * exception if the response is committed.
 *
 * <p>It compares no tokens: the write comes after a comparison here, so the comparison would not be
 * a fence.
 */
public final class FencingFilter implements Filter {
  /** The name of the request attribute that has the token. */
  public static final String TOKEN = "dev.leasehold.fencingToken";

  private static final String HEADER = "X-Fencing-Token";
  private static final Pattern DIGITS = Pattern.compile("[1-9][0-9]{0,15}");
  private static final long LARGEST = (1L << 53) - 1;

  /** The texts of SQLite and Redis, and the constraint's name in MariaDB. */
  private static final Pattern STALE = Pattern.compile("stale fencing token|`stale_fencing_token`");

  private static final JsonFactory JSON = new JsonFactory();

  private final Set<String> unfenced;

  /** Creates a filter that requires no token for GET, HEAD and OPTIONS. */
  public FencingFilter() {
    this(Set.of("GET", "HEAD", "OPTIONS"));
  }

  /**
   * Creates a filter.
   *
   * @param unfenced the methods that need no token
   */
  public FencingFilter(Set<String> unfenced) {
    this.unfenced = Set.copyOf(unfenced);
  }

  @Override
  public void doFilter(ServletRequest request, ServletResponse response, FilterChain chain)
      throws IOException, ServletException {
    if (request instanceof HttpServletRequest asked
        && response instanceof HttpServletResponse answer
        && !unfenced.contains(asked.getMethod())) {
      fence(asked, answer, chain);
    } else {
      chain.doFilter(request, response);
    }
  }

  private static void fence(
      HttpServletRequest request, HttpServletResponse response, FilterChain chain)
      throws IOException, ServletException {
    List<String> values = Collections.list(request.getHeaders(HEADER));
    if (values.isEmpty()) {
      String detail =
          "send the fencing token of your lease in the header X-Fencing-Token with each write";
      answer(response, 428, "token_required", "Fencing token is required", detail);
      return;
    }
    long token = DIGITS.matcher(values.get(0)).matches() ? Long.parseLong(values.get(0)) : 0;
    if (values.size() > 1 || token == 0 || token > LARGEST) {
      String detail =
          "send the header X-Fencing-Token once, with a whole number from 1 to "
              + LARGEST
              + " in decimal digits";
      answer(response, 400, "token_invalid", "Fencing token is not valid", detail);
      return;
    }
    request.setAttribute(TOKEN, token);
    try {
      chain.doFilter(request, response);
    } catch (IOException | ServletException | RuntimeException thrown) {
      Optional<String> text = refusal(thrown);
      if (text.isEmpty() || response.isCommitted()) {
        throw thrown;
      }
      // The handler may have set headers for its own response, such as Content-Length.
      response.reset();
      String detail =
          "a newer lease exists: stop working, and do not repeat the request. The store's answer: "
              + text.get();
      answer(response, 412, "stale_token", "Fencing token is stale", detail);
    }
  }

  /**
   * Returns the text with which a fence of Leasehold refused a stale token; empty for any other
   * exception. It knows the fences of PostgreSQL, MariaDB, SQLite and Redis with any driver, also
   * as the cause of another exception.
   *
   * @param thrown what the handler threw
   * @return the text
   */
  public static Optional<String> refusal(Throwable thrown) {
    List<Throwable> chain = new ArrayList<>();
    for (Throwable link = thrown; link != null && !chain.contains(link); link = link.getCause()) {
      chain.add(link);
    }
    for (Throwable link : chain) {
      // PostgreSQL has a SQLSTATE of its own for everything. The text of its errors may have values
      // of the request, so it does not count. MariaDB has 23000 for each constraint, and SQLite's
      // drivers have none.
      String state = link instanceof SQLException error ? error.getSQLState() : null;
      if (state != null && !state.isEmpty() && !state.equals("23000")) {
        return state.equals("LH001") ? Optional.of(firstLine(link)) : Optional.empty();
      }
    }
    // The last cause is the driver's exception.
    Collections.reverse(chain);
    return chain.stream()
        .map(FencingFilter::firstLine)
        .filter(text -> STALE.matcher(text).find())
        .findFirst();
  }

  /** Returns the text without what drivers append: a hint, or the statement with its values. */
  private static String firstLine(Throwable link) {
    return String.valueOf(link.getMessage()).lines().findFirst().orElse("");
  }

  /** Answers with a problem document (RFC 9457). */
  private static void answer(
      HttpServletResponse response, int status, String code, String title, String detail)
      throws IOException {
    ByteArrayOutputStream body = new ByteArrayOutputStream();
    try (JsonGenerator json = JSON.createGenerator(body)) {
      json.writeStartObject();
      json.writeStringField("type", "urn:leasehold:problem:" + code);
      json.writeStringField("title", title);
      json.writeNumberField("status", status);
      json.writeStringField("code", code);
      json.writeStringField("detail", detail);
      json.writeEndObject();
    }
    response.setStatus(status);
    response.setContentType("application/problem+json");
    response.setContentLength(body.size());
    response.getOutputStream().write(body.toByteArray());
  }
}
