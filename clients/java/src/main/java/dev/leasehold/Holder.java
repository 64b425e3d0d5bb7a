package dev.leasehold;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The holder of a lock, as it presents itself.
 *
 * @param ownerId its name; the pod's name, unless the holder has set another one
 * @param pod the pod in which it runs
 * @param fencingToken the token of its grant
 * @param heldSince when it got the lock, in RFC 3339
 * @param metadata what else the holder says about itself
 */
public record Holder(
    @Nullable String ownerId,
    @Nullable String pod,
    @Nullable Long fencingToken,
    @Nullable String heldSince,
    Map<String, String> metadata) {

  static Holder of(Document document) {
    Document metadata = document.document("metadata");
    return new Holder(
        document.text("ownerId"),
        document.text("pod"),
        document.number("fencingToken"),
        document.text("heldSince"),
        metadata == null ? Map.of() : metadata.texts());
  }
}
