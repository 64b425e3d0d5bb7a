package dev.leasehold;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The holder of a lock, as it presents itself. What is not known is empty.
 *
 * @param ownerId its name; the pod's name, unless the holder has set another one
 * @param pod the pod in which it runs
 * @param fencingToken the token of its grant, or null
 * @param heldSince when it got the lock, in RFC 3339
 * @param metadata what else the holder says about itself
 */
public record Holder(
    String ownerId,
    String pod,
    @Nullable Long fencingToken,
    String heldSince,
    Map<String, String> metadata) {

  static Holder of(Api.Holder holder) {
    return new Holder(
        holder.ownerId(),
        holder.pod(),
        holder.fencingToken(),
        holder.heldSince(),
        holder.metadata());
  }
}
