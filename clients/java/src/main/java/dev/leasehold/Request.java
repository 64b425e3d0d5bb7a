package dev.leasehold;

import org.jspecify.annotations.Nullable;

/** A call of the HTTP API. */
record Request(String method, String path, @Nullable Document body) {
  static Request post(String path, Document body) {
    return new Request("POST", path, body);
  }

  byte[] toJson() {
    return body == null ? new byte[0] : body.toJson();
  }

  static Request delete(String leaseId) {
    return new Request("DELETE", "/v1/locks/" + leaseId, null);
  }
}
