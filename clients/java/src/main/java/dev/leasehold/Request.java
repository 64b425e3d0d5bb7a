package dev.leasehold;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/** A call of the HTTP API. */
record Request(String method, String path, @Nullable Document body) {
  static Request post(String path, Map<String, @Nullable Object> body) {
    return new Request("POST", path, new Document(body));
  }

  byte[] toJson() {
    return body == null ? new byte[0] : body.toJson();
  }

  static Request delete(String leaseId) {
    return new Request("DELETE", "/v1/locks/" + leaseId, null);
  }
}
