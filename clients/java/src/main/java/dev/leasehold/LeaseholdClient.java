package dev.leasehold;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import org.jspecify.annotations.Nullable;

/**
 * A sidecar, or {@code leasehold dev}. One client is enough for a process, and all threads may use
 * it. It has two threads for all leases, and one more for callbacks.
 */
public final class LeaseholdClient implements AutoCloseable {
  private final Engine engine;

  private LeaseholdClient(Builder builder) {
    Address address = Address.parse(builder.url);
    engine = new Engine(address, builder.listener, builder.callbacks);
  }

  /**
   * Returns a client of the sidecar that the environment variable LEASEHOLD_URL names, or {@code
   * http://127.0.0.1:7373}.
   *
   * @return the client
   */
  public static LeaseholdClient create() {
    return builder().build();
  }

  /**
   * Returns a client of the sidecar at an address.
   *
   * @param url {@code http://HOST:PORT}
   * @return the client
   * @throws IllegalArgumentException with what to correct
   */
  public static LeaseholdClient create(String url) {
    return builder().url(url).build();
  }

  /**
   * Returns a builder of a client.
   *
   * @return the builder
   */
  public static Builder builder() {
    return new Builder();
  }

  /**
   * Returns the version of this library.
   *
   * @return the version
   */
  public static String version() {
    return Version.VERSION;
  }

  /**
   * Acquires a lock, and waits for it without a limit. The lease is for try-with-resources.
   *
   * @param resource what to lock: 1 to 512 bytes of text
   * @return the lease
   * @throws UnavailableException if the sidecar or the API server was away for too long
   * @throws RefusedException if the request must be corrected
   * @throws InterruptedException if the thread was interrupted. Nothing is held then
   */
  public Lease lock(String resource) throws InterruptedException {
    return lock(resource, LockOptions.defaults());
  }

  /**
   * Acquires a lock. The lease is for try-with-resources.
   *
   * @param resource what to lock: 1 to 512 bytes of text
   * @param options how to acquire and hold it
   * @return the lease
   * @throws LockHeldException if another caller has the lock, and the wait is over
   * @throws UnavailableException if the sidecar or the API server was away for too long
   * @throws RefusedException if the request must be corrected
   * @throws InterruptedException if the thread was interrupted. Nothing is held then
   */
  public Lease lock(String resource, LockOptions options) throws InterruptedException {
    return engine.await(engine.acquire(Wanted.lock(resource, options)));
  }

  /**
   * Acquires a lock in the background, and waits for it without a limit.
   *
   * @param resource what to lock: 1 to 512 bytes of text
   * @return a future with the lease, or with the exceptions of {@link #lock(String)}
   */
  public CompletableFuture<Lease> lockAsync(String resource) {
    return lockAsync(resource, LockOptions.defaults());
  }

  /**
   * Acquires a lock in the background.
   *
   * <p>Cancelling the future ends the wait, and nothing is held then. So does {@link
   * CompletableFuture#orTimeout} on it. As with each CompletableFuture, cancelling a future that
   * was derived from it does not. The dependent actions run on the executor for callbacks, unless
   * they have one of their own.
   *
   * @param resource what to lock: 1 to 512 bytes of text
   * @param options how to acquire and hold it
   * @return a future with the lease, or with the exceptions of {@link #lock(String, LockOptions)}
   */
  public CompletableFuture<Lease> lockAsync(String resource, LockOptions options) {
    return engine.promise(engine.acquire(Wanted.lock(resource, options)));
  }

  /**
   * Waits until this process leads, for one term. The end of the lease steps down.
   *
   * @param election a DNS label of at most 56 characters
   * @return the lead
   * @throws UnavailableException if the sidecar or the API server was away for too long
   * @throws RefusedException if the request must be corrected
   * @throws InterruptedException if the thread was interrupted. Nothing is held then
   */
  public Lease lead(String election) throws InterruptedException {
    return lead(election, LeadOptions.defaults());
  }

  /**
   * Waits until this process leads, for one term. The end of the lease steps down.
   *
   * @param election a DNS label of at most 56 characters
   * @param options how to run for it
   * @return the lead
   * @throws UnavailableException if the sidecar or the API server was away for too long
   * @throws RefusedException if the request must be corrected
   * @throws InterruptedException if the thread was interrupted. Nothing is held then
   */
  public Lease lead(String election, LeadOptions options) throws InterruptedException {
    return engine.await(engine.acquire(Wanted.lead(election, options)));
  }

  /**
   * Runs for an election in the background, term after term. Ask {@link Election#isLeader}.
   *
   * @param election a DNS label of at most 56 characters
   * @return the candidacy
   */
  public Election elect(String election) {
    return candidate(election, LeadOptions.defaults(), null);
  }

  /**
   * Runs for an election in the background, term after term.
   *
   * @param election a DNS label of at most 56 characters
   * @param leader is called in the election's thread in each term
   * @return the candidacy
   */
  public Election elect(String election, LeaderTask leader) {
    return candidate(election, LeadOptions.defaults(), leader);
  }

  /**
   * Runs for an election in the background, term after term. Ask {@link Election#isLeader}.
   *
   * @param election a DNS label of at most 56 characters
   * @param options how to run for it
   * @return the candidacy
   */
  public Election elect(String election, LeadOptions options) {
    return candidate(election, options, null);
  }

  /**
   * Runs for an election in the background, term after term.
   *
   * @param election a DNS label of at most 56 characters
   * @param options how to run for it
   * @param leader is called in the election's thread in each term
   * @return the candidacy
   */
  public Election elect(String election, LeadOptions options, LeaderTask leader) {
    return candidate(election, options, leader);
  }

  private Election candidate(String name, LeadOptions options, @Nullable LeaderTask leader) {
    engine.mustBeOpen();
    Election election = new Election(engine, Wanted.lead(name, options), leader);
    election.start();
    return election;
  }

  /**
   * Ends all that the client holds or waits for, and its threads. A lease that is still held is
   * lost with the reason {@code client_closed}, and its lock is released. Close the leases first.
   */
  @Override
  public void close() {
    engine.close();
  }

  /** Builds a client. */
  public static final class Builder {
    private String url = Address.fromEnvironment();
    private @Nullable LeaseListener listener;
    private @Nullable Executor callbacks;

    private Builder() {}

    /**
     * Sets the sidecar's address. The default is that of the environment variable LEASEHOLD_URL, or
     * {@code http://127.0.0.1:7373}.
     *
     * @param url {@code http://HOST:PORT}
     * @return this builder
     */
    public Builder url(String url) {
      this.url = url;
      return this;
    }

    /**
     * Sets an observer of all locks.
     *
     * @param listener the observer
     * @return this builder
     */
    public Builder listener(LeaseListener listener) {
      this.listener = listener;
      return this;
    }

    /**
     * Sets where the app's callbacks run: those of {@link Lease#onLost}, the listener, and the
     * dependent actions of futures. The default is one thread, so a callback that blocks delays the
     * others, and one that waits for a future of this client waits for itself. It delays no lease.
     *
     * @param executor the executor; the client does not shut it down
     * @return this builder
     */
    public Builder callbackExecutor(Executor executor) {
      this.callbacks = executor;
      return this;
    }

    /**
     * Builds the client.
     *
     * @return the client
     * @throws IllegalArgumentException if the address must be corrected
     */
    public LeaseholdClient build() {
      return new LeaseholdClient(this);
    }
  }
}
