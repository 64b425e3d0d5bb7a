package dev.leasehold;

import static java.lang.System.Logger.Level.WARNING;
import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.net.http.HttpRequest;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * The right to act, until {@link #remaining} is zero. All methods may be called from any thread.
 */
public final class Lease implements AutoCloseable {
  private final Engine engine;
  private final Consumer<Lease> drop;
  private final String resource;
  private final String leaseId;
  private final long token;
  private final String ownerId;
  private final List<String> completed;
  private final CountDownLatch ending = new CountDownLatch(1);
  private volatile @Nullable ReleaseRequest releaseRequested;

  private final Validity validity;
  private final LossNotices notices;
  private final CompletableFuture<Void> release = new CompletableFuture<>();

  /** Completed when it is lost or released, on the loop. */
  final CompletableFuture<Void> over = new CompletableFuture<>();

  Lease(Engine engine, Consumer<Lease> drop, Api.Acquired granted, long deadline) {
    this.engine = engine;
    this.drop = drop;
    validity = new Validity(engine.loop(), deadline, this::afterLoss);
    notices = new LossNotices(engine);
    resource = granted.resource();
    leaseId = granted.leaseId();
    token = granted.fencingToken();
    ownerId = granted.ownerId();
    completed = granted.completed();
    Api.ReleaseRequested request = granted.releaseRequested();
    if (request != null) {
      askForRelease(ReleaseRequest.of(request));
    }
  }

  /**
   * Returns what is locked.
   *
   * @return the resource
   */
  public String resource() {
    return resource;
  }

  /**
   * Returns the lease's id, as the HTTP API and the logs have it.
   *
   * @return the id
   */
  public String leaseId() {
    return leaseId;
  }

  /**
   * Returns the fencing token: larger than every token given before for this resource. Send it with
   * each write to what the lock guards.
   *
   * @return the token
   */
  public long token() {
    return token;
  }

  /**
   * Returns the name of the holder that others see.
   *
   * @return the name
   */
  public String ownerId() {
    return ownerId;
  }

  /**
   * Returns the keys of work that earlier holders have completed, oldest first.
   *
   * @return the keys
   */
  public List<String> completed() {
    return completed;
  }

  /**
   * Returns how long the lease is valid from now on, if nothing prolongs it. It is rounded down,
   * and zero if the lease has ended.
   *
   * @return the time
   */
  public Duration remaining() {
    return validity.remaining();
  }

  /**
   * Returns whether the lease is valid. It sends no request.
   *
   * @return whether it is held
   */
  public boolean isHeld() {
    return validity.end() == null;
  }

  /**
   * Returns why the lease has ended: {@code released}, {@code validity_over}, {@code
   * client_closed}, or a reason of the HTTP API.
   *
   * @return the reason, or nothing while it is valid
   */
  public Optional<String> reason() {
    return Optional.ofNullable(validity.end()).map(Validity.End::reason);
  }

  /**
   * Returns the request to release the lock, if there is one. Finish the work and release it;
   * nothing is taken from you.
   *
   * @return the request
   */
  public Optional<ReleaseRequest> releaseRequested() {
    return Optional.ofNullable(releaseRequested);
  }

  /**
   * Checks that the lease is valid. Call it before each write, and between the steps of long work.
   * It sends no request.
   *
   * @throws LockLostException if the lease has ended
   */
  public void check() {
    Validity.End found = validity.end();
    if (found != null) {
      throw found.toException();
    }
  }

  /**
   * Returns the header {@code X-Fencing-Token} for a request to what the lock guards.
   *
   * @return the header
   * @throws LockLostException if the lease has ended
   */
  public Map<String, String> headers() {
    check();
    return Map.of("X-Fencing-Token", Long.toString(token));
  }

  /**
   * Sets the header {@code X-Fencing-Token} of a request to what the lock guards.
   *
   * @param request the request
   * @return the same builder
   * @throws LockLostException if the lease has ended
   */
  public HttpRequest.Builder fence(HttpRequest.Builder request) {
    headers().forEach(request::setHeader);
    return request;
  }

  /**
   * Has a function called when the lease is lost, at once if it is. A release does not call it.
   *
   * <p>The executor for callbacks calls it. By default that is one thread for all leases: a
   * callback that blocks delays other callbacks, but no lease.
   *
   * @param callback the function
   */
  public void onLost(Consumer<Lease> callback) {
    Objects.requireNonNull(callback);
    notices.add(() -> callback.accept(this));
  }

  /**
   * Interrupts the calling thread when the lease is lost, at once if it is. Call it at the
   * beginning of the block, in the thread that does the work.
   *
   * <p>The thread is interrupted at most once, and not after {@link #close} has begun. If close is
   * called by the same thread after the loss, it also clears the thread's interrupt status, so
   * nothing that follows the block is interrupted by this lease. Close throws LockLostException
   * then. An interrupt from elsewhere between the loss and the end of the block is cleared, too.
   */
  public void interruptOnLoss() {
    notices.interruptThisThread();
  }

  /**
   * Waits until the lease has ended, or its release is requested. A leader works in the loop {@code
   * while (!lease.awaitEnd(pause))}.
   *
   * @param most the longest wait
   * @return false if the lease is valid, no release is requested, and the time is over
   * @throws InterruptedException if the thread is interrupted
   */
  public boolean awaitEnd(Duration most) throws InterruptedException {
    long nanos = most.toSeconds() > 1L << 32 ? Long.MAX_VALUE : most.toNanos();
    return ending.await(nanos, NANOSECONDS) || !isHeld();
  }

  /**
   * Records under a key that work has succeeded. Later holders find it in {@link #completed}. It
   * waits for the sidecar, ten seconds at most.
   *
   * @param key 1 to 128 printable ASCII characters
   * @throws LockLostException if the lease has ended
   * @throws UnavailableException if it is not known whether the key is recorded
   * @throws RefusedException if the request must be corrected
   */
  public void complete(String key) {
    check();
    engine.loop().mustNotBeHere();
    Waits.join(completion(key));
  }

  /**
   * Does what {@link #complete} does in the background.
   *
   * @param key 1 to 128 printable ASCII characters
   * @return a future that fails with the exceptions of {@link #complete}
   * @throws LockLostException if the lease has ended already
   */
  public CompletableFuture<Void> completeAsync(String key) {
    check();
    return Waits.forApp(engine, completion(key));
  }

  private CompletableFuture<Void> completion(String key) {
    Document body = new Api.CompleteRequest(key).toDocument();
    Request request = Request.post("/v1/locks/" + leaseId + "/complete", body);
    CompletableFuture<Void> result = new CompletableFuture<>();
    Call.once(
        engine,
        request,
        (answer, problem) -> {
          if (problem == null) {
            result.complete(null);
            return;
          }
          if (problem.isLost()) {
            lose(problem.code(), problem.detail());
          }
          result.completeExceptionally(problem.toException());
        });
    return result;
  }

  /**
   * Releases the lock. The lease is over in any case. It waits for the sidecar's confirmation, ten
   * seconds at most and not beyond the deadline; without one, a warning is logged, and the lock is
   * free when its session or its TTL ends. After a release, to close it again has no effect.
   *
   * @throws LockLostException if the lease was lost before: another holder may have had the lock.
   *     Try-with-resources adds it to the suppressed exceptions of the body's own exception
   */
  @Override
  public void close() {
    engine.loop().mustNotBeHere();
    notices.disarm();
    Waits.join(beginRelease());
  }

  /**
   * Does what {@link #close} does in the background.
   *
   * @return a future that fails with LockLostException if the lease was lost before
   */
  public CompletableFuture<Void> releaseAsync() {
    notices.disarm();
    return Waits.forApp(engine, beginRelease());
  }

  /** Ends it here, then at the sidecar. */
  private CompletableFuture<Void> beginRelease() {
    if (!validity.release()) {
      Validity.End before = validity.end();
      return before == null || validity.isReleased()
          ? release
          : CompletableFuture.failedFuture(before.toException());
    }
    // After the deadline the lock is no longer this one's to release.
    long timeout = Math.min(Http.CALL.toNanos(), validity.nanosLeft());
    ending.countDown();
    Call.persistently(
        engine,
        Request.delete(leaseId),
        timeout,
        (answer, problem) -> {
          drop.accept(this);
          over.complete(null);
          released(answer, problem);
        });
    return release;
  }

  private void released(@Nullable Answer answer, @Nullable Problem problem) {
    if (problem != null && problem.isLost()) {
      release.completeExceptionally(problem.toException());
      return;
    }
    boolean isConfirmed = answer != null && answer.status() != 202;
    if (problem != null) {
      Call.release(engine, leaseId);
    }
    if (!isConfirmed) {
      Object why = problem == null ? "it is pending" : problem;
      Log.LOG.log(WARNING, "release of {0} is not confirmed: {1}", resource, why);
    }
    engine.tell(listener -> listener.released(this, isConfirmed));
    release.complete(null);
  }

  /** Releases it in the background: its caller did not wait for it. */
  void abandon() {
    beginRelease();
  }

  /** Takes a new deadline from the sidecar. A lease that has ended stays ended. */
  void prolong(long deadline) {
    validity.prolong(deadline);
  }

  /** Remembers why no new deadline may come. */
  void doubt(String why) {
    validity.doubt(why);
  }

  /** Takes a request to release it. */
  void askForRelease(ReleaseRequest request) {
    releaseRequested = request;
    ending.countDown();
  }

  /** Ends it: the sidecar said so. */
  void lose(String reason, String detail) {
    validity.lose(reason, detail);
  }

  /** On the loop: ends it at the deadline, also without a call. */
  void watch() {
    validity.watch();
  }

  /** Returns whether it ended without a release. */
  boolean wasLost() {
    return validity.end() != null && !validity.isReleased();
  }

  /** On the loop, once. */
  private void afterLoss() {
    List<Runnable> toCall = notices.take();
    ending.countDown();
    over.complete(null);
    Log.LOG.log(
        WARNING, "lock lost: {0} (token {1}): {2}", resource, Long.toString(token), reason().get());
    toCall.forEach(engine::call);
    engine.tell(listener -> listener.lost(this));
    drop.accept(this);
  }

  @Override
  public String toString() {
    return "Lease of " + resource + ", token " + token + ", " + reason().orElse("held");
  }
}
