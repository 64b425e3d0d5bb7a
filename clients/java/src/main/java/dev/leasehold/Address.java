package dev.leasehold;

import java.net.URI;
import java.net.URISyntaxException;
import org.jspecify.annotations.Nullable;

/** Where the sidecar listens, as the beginning of each request's URI. */
record Address(String url) {
  static final String DEFAULT = "http://127.0.0.1:7373";

  /** Parses {@code http://HOST:PORT}; throws IllegalArgumentException with what to correct. */
  static Address parse(String url) {
    URI uri = uri(url);
    if (uri != null && "unix".equals(uri.getScheme())) {
      throw new IllegalArgumentException(
          url
              + " is a Unix socket, which Java's HttpClient cannot use;"
              + " have the sidecar listen on TCP, for example "
              + DEFAULT);
    }
    if (uri == null || !fits(uri)) {
      String advice = " is not the address of a sidecar; use http://HOST:PORT, for example ";
      throw new IllegalArgumentException("\"" + url + "\"" + advice + DEFAULT);
    }
    return new Address("http://" + uri.getRawAuthority());
  }

  private static boolean fits(URI uri) {
    return "http".equalsIgnoreCase(uri.getScheme())
        && uri.getHost() != null
        && uri.getPort() <= 65_535
        && uri.getRawUserInfo() == null
        && uri.getRawQuery() == null
        && uri.getRawFragment() == null
        && (uri.getRawPath().isEmpty() || uri.getRawPath().equals("/"));
  }

  private static @Nullable URI uri(String url) {
    try {
      return new URI(url);
    } catch (URISyntaxException error) {
      return null;
    }
  }

  /** Returns the address from the environment, or the default. */
  static String fromEnvironment() {
    String url = System.getenv("LEASEHOLD_URL");
    return url == null || url.isEmpty() ? DEFAULT : url;
  }

  URI of(String path) {
    return URI.create(url + path);
  }

  @Override
  public String toString() {
    return url;
  }
}
