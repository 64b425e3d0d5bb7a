package dev.leasehold;

import static dev.leasehold.FakeSidecar.BUSY;
import static dev.leasehold.FakeSidecar.GRANT;
import static dev.leasehold.FakeSidecar.HANG_UP;
import static dev.leasehold.FakeSidecar.answer;
import static dev.leasehold.FakeSidecar.stream;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.URI;
import java.net.http.HttpRequest;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What no sidecar does on demand. The conformance suite tests the client with a sidecar. */
@Timeout(60)
class ClientTest {
  private static final LockOptions HELD = LockOptions.defaults();
  private static final LockOptions RENEWED = HELD.ttl(Duration.ofMinutes(1));
  private static final String ACQUIRED = "event: acquired\ndata: " + GRANT + "\n\n";
  private static final String RELEASE = "DELETE /v1/locks/l";

  @Test
  void eventsAreReadHoweverTheyAreSplit() throws Exception {
    FakeSidecar.Reply events =
        stream(
            "event: waiting\ndata: {\"holder\":{\"ownerId\":\"😀\"}}\n\n",
            ACQUIRED.replace("\"r\"", "\"€ 😀\""),
            ": a comment\ndata: without a name\n\nevent: new\ndata: {\"x\":[1.5,null,{}]}\n\n",
            "event: release-requested\ndata: {\"reason\":\"person_asked\",\"actor\":\"é😀\"}\n\n",
            "event: lost\r\ndata: {\"reason\":\"a_new_reason\",\"detail\":\"ü\"}\r\n\r\n");
    try (FakeSidecar sidecar = new FakeSidecar(events)) {
      Lease lease = sidecar.client.lock("€ 😀");
      lease.over.get();
      assertEquals("€ 😀", lease.resource());
      assertEquals("é😀", lease.releaseRequested().orElseThrow().actor());
      LockLostException lost = assertThrows(LockLostException.class, lease::close);
      assertEquals("a_new_reason: ü", lost.code() + ": " + lost.detail());
    }
  }

  @Test
  void failureThatStaysIsReportedAtOnce() throws Exception {
    String problem = "{\"code\":\"not_installed\",\"detail\":\"apply the CRDs\"}";
    for (LockOptions options : List.of(HELD, RENEWED)) {
      assertFailsAtOnce(UnavailableException.class, options, answer(503, problem));
      for (String notOurs : List.of("<html>", "{}", "{\"leaseId\":\"l\"}", "[7]", "")) {
        assertFailsAtOnce(RefusedException.class, options, answer(200, notOurs));
      }
    }
    assertFailsAtOnce(RefusedException.class, HELD, stream("event: acquired\ndata: {}\n\n"));
  }

  private static void assertFailsAtOnce(
      Class<? extends Exception> with, LockOptions options, FakeSidecar.Reply reply)
      throws Exception {
    try (FakeSidecar sidecar = new FakeSidecar(reply)) {
      assertThrows(with, () -> sidecar.client.lock("r", options));
      sidecar.next();
      assertTrue(sidecar.calls.isEmpty());
    }
  }

  @Test
  void repeatedAcquireKeepsItsRequestId() throws Exception {
    FakeSidecar.Reply held = answer(409, "{\"code\":\"lock_held\",\"detail\":\"bob has it\"}");
    try (FakeSidecar sidecar = new FakeSidecar(HANG_UP, HANG_UP, BUSY, held, answer(200, GRANT))) {
      sidecar.client.lock("r", RENEWED);
      String first = sidecar.next().requestId();
      for (int number = 2; number <= 4; number++) {
        assertEquals(first, sidecar.next().requestId());
      }
      // A poll that was answered is over.
      assertNotEquals(first, sidecar.next().requestId());
    }
  }

  @Test
  void callerThatLeavesReleasesWhatItIsGranted() throws Exception {
    try (FakeSidecar sidecar = new FakeSidecar(unanswered -> {}, answer(200, GRANT))) {
      CompletableFuture<Lease> left = sidecar.client.lockAsync("r", RENEWED);
      FakeSidecar.Call first = sidecar.next();
      left.cancel(false);
      FakeSidecar.Call second = sidecar.next();
      assertEquals(first.requestId(), second.requestId());
      assertEquals(0, second.body().number("waitSeconds", -1));
      assertEquals(RELEASE, sidecar.next().line());
    }
  }

  @Test
  void unansweredAcquireIsReleased() throws Exception {
    try (FakeSidecar sidecar = new FakeSidecar(HANG_UP, HANG_UP, answer(200, GRANT))) {
      LockOptions once = RENEWED.tryOnce();
      assertThrows(UnavailableException.class, () -> sidecar.client.lock("r", once));
      String first = sidecar.next().requestId();
      assertEquals(first, sidecar.next().requestId());
      assertEquals(first, sidecar.next().requestId());
      assertEquals(RELEASE, sidecar.next().line());
    }
  }

  @Test
  void leaseWhoseRenewalsFailEndsAtItsDeadline() throws Exception {
    String grant = GRANT.replace("20000", "10");
    FakeSidecar.Reply renewed = answer(200, grant.replace("60000", "1000"));
    try (FakeSidecar sidecar = new FakeSidecar(answer(200, grant), BUSY, renewed, BUSY)) {
      Lease lease = sidecar.client.lock("r", RENEWED);
      lease.interruptOnLoss();
      lease.over.join();
      assertTrue(Thread.currentThread().isInterrupted());
      LockLostException lost = assertThrows(LockLostException.class, lease::close);
      assertEquals("validity_over", lost.code());
      assertFalse(Thread.interrupted());
      String last = sidecar.next().line();
      while (!last.equals(RELEASE)) {
        last = sidecar.next().line();
      }
    }
  }

  @Test
  void releaseIsRepeatedUntilItIsAnswered() throws Exception {
    try (FakeSidecar sidecar = new FakeSidecar(stream(ACQUIRED), HANG_UP, HANG_UP)) {
      Lease lease = sidecar.client.lock("r");
      lease.close();
      lease.close();
      assertEquals("released", lease.reason().orElseThrow());
      sidecar.next();
      for (int number = 1; number <= 3; number++) {
        assertEquals(RELEASE, sidecar.next().line());
      }
      assertTrue(sidecar.calls.isEmpty());
    }
  }

  @Test
  void tokenIsSentUntilTheEnd() throws Exception {
    try (FakeSidecar sidecar = new FakeSidecar(stream(ACQUIRED))) {
      Lease lease = sidecar.client.lock("r");
      assertEquals(Map.of("X-Fencing-Token", "7"), lease.headers());
      var request = HttpRequest.newBuilder(URI.create("http://x")).header("X-Fencing-Token", "6");
      List<String> sent = lease.fence(request).build().headers().allValues("X-Fencing-Token");
      assertEquals(List.of("7"), sent);
      lease.close();
      assertThrows(LockLostException.class, () -> lease.fence(request));
    }
  }
}
