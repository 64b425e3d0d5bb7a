package dev.leasehold;

import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/** How to run for an election. Objects are immutable: each method returns a changed copy. */
public final class LeadOptions {
  private static final LeadOptions DEFAULTS = new LeadOptions(null, Map.of(), false);

  private final @Nullable String ownerId;
  private final Map<String, String> metadata;
  private final boolean isPreferred;

  private LeadOptions(@Nullable String ownerId, Map<String, String> metadata, boolean preferred) {
    this.ownerId = ownerId;
    this.metadata = metadata;
    this.isPreferred = preferred;
  }

  /**
   * Returns the default options.
   *
   * @return the options
   */
  public static LeadOptions defaults() {
    return DEFAULTS;
  }

  /**
   * Sets the leader's name, which other callers and kubectl show. The default is the pod's name.
   *
   * @param ownerId the name
   * @return the changed options
   */
  public LeadOptions ownerId(String ownerId) {
    return new LeadOptions(Objects.requireNonNull(ownerId), metadata, isPreferred);
  }

  /**
   * Sets what is shown with the leader.
   *
   * @param metadata at most 16 entries
   * @return the changed options
   */
  public LeadOptions metadata(Map<String, String> metadata) {
    return new LeadOptions(ownerId, Map.copyOf(metadata), isPreferred);
  }

  /**
   * Gets the lead before candidates that are not preferred. It is taken from no leader.
   *
   * @return the changed options
   */
  public LeadOptions preferred() {
    return new LeadOptions(ownerId, metadata, true);
  }

  @Nullable String ownerId() {
    return ownerId;
  }

  Map<String, String> metadata() {
    return metadata;
  }

  boolean isPreferred() {
    return isPreferred;
  }
}
