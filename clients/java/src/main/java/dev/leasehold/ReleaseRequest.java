package dev.leasehold;

import org.jspecify.annotations.Nullable;

/**
 * A request to release a lock. Finish the work, then release it; nothing is taken from you.
 *
 * @param reason {@code person_asked}, {@code agent_stopping}, {@code max_hold}, or {@code stopped}
 *     if {@link Election#stop} asks. More reasons may be added
 * @param actor the person that requests it, if there is one
 * @param message what the person says
 */
public record ReleaseRequest(String reason, @Nullable String actor, @Nullable String message) {

  static ReleaseRequest of(Api.ReleaseRequested asked) {
    return of(asked.reason(), asked.actor(), asked.message());
  }

  static ReleaseRequest of(String reason, @Nullable String actor, @Nullable String message) {
    return new ReleaseRequest(reason, presence(actor), presence(message));
  }

  private static @Nullable String presence(@Nullable String text) {
    return text == null || text.isEmpty() ? null : text;
  }
}
