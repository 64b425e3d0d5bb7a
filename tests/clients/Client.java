// A long poll with the JDK's own HttpClient. Java 17 or later.
//
//     java Client.java URL_OF_A [URL_OF_B] [--hold SECONDS] [--wait SECONDS]
//
// Two workers want one lock. A holds it; B is queued, and gets the lock when A releases it. Then A is
// queued, and cancels its request before it gets the lock. The URLs are those of the workers' sidecars,
// or of one sidecar for both. Exits with 0 on success, otherwise prints the error and exits with 1.

import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;

public class Client {
    /** Another holder has the lock; the message names it. */
    static class LockHeld extends Exception {
        LockHeld(String words) {
            super(words);
        }
    }

    /** The lease is over: stop what the lock guards. */
    static class LeaseLost extends Exception {
        LeaseLost(String words) {
            super(words);
        }
    }

    /** An app with a sidecar. */
    record Worker(String name, String url, HttpClient http) {
        Lease acquire(String resource, int waitSeconds) throws Exception {
            long sent = System.nanoTime();
            return granted(
                    http.send(request(resource, waitSeconds), BodyHandlers.ofString()), sent);
        }

        /** The answer arrives when the worker has the lock or the time is up. Cancel it to leave the queue. */
        CompletableFuture<HttpResponse<String>> acquireInLine(String resource, int waitSeconds) {
            return http.sendAsync(request(resource, waitSeconds), BodyHandlers.ofString());
        }

        private HttpRequest request(String resource, int waitSeconds) {
            String body = """
                    {"resource": "%s", "ownerId": "%s", "ttlSeconds": 30, "waitSeconds": %d}"""
                    .formatted(resource, name, waitSeconds);
            return HttpRequest.newBuilder(URI.create(url + "/v1/locks/acquire"))
                    .header("Content-Type", "application/json")
                    .POST(BodyPublishers.ofString(body))
                    .build();
        }

        Lease granted(HttpResponse<String> answer, long sent) throws LockHeld {
            String json = answer.body();
            if (answer.statusCode() == 409 && text(json, "code").equals("lock_held")) {
                throw new LockHeld(text(json, "detail"));
            }
            check(answer.statusCode() == 200, "acquire: " + answer.statusCode() + " " + json);
            return new Lease(this, answer, sent);
        }

        long queueLength(String resource) throws Exception {
            String prefix = URLEncoder.encode(resource, StandardCharsets.UTF_8);
            URI list = URI.create(url + "/v1/locks?prefix=" + prefix);
            HttpResponse<String> answer =
                    http.send(HttpRequest.newBuilder(list).build(), BodyHandlers.ofString());
            check(answer.statusCode() == 200, "list: " + answer.statusCode() + answer.body());
            return number(answer.body(), "queueLength");
        }
    }

    /** A lock that a worker holds until `validUntil`. */
    static class Lease {
        final Worker worker;
        final URI uri;
        final boolean acquired;
        final long token;
        final String tokenHeader;
        long validUntil;
        long renewAt;

        Lease(Worker worker, HttpResponse<String> answer, long sent) {
            this.worker = worker;
            uri = URI.create(worker.url + "/v1/locks/" + text(answer.body(), "leaseId"));
            acquired = answer.body().contains("\"acquired\":true");
            token = number(answer.body(), "fencingToken");
            tokenHeader = answer.headers().firstValue("X-Fencing-Token").orElse("");
            note(answer.body(), sent);
        }

        private void note(String json, long sent) {
            // Both times count from when the request was sent, even if the answer was slow.
            validUntil = sent + TimeUnit.MILLISECONDS.toNanos(number(json, "validForMs"));
            renewAt = sent + TimeUnit.MILLISECONDS.toNanos(number(json, "renewAfterMs"));
        }

        boolean isValid() {
            return System.nanoTime() - validUntil < 0;
        }

        void renew() throws Exception {
            long sent = System.nanoTime();
            HttpRequest request = HttpRequest.newBuilder(URI.create(uri + "/renew"))
                    .POST(BodyPublishers.noBody())
                    .build();
            HttpResponse<String> answer = worker.http.send(request, BodyHandlers.ofString());
            if (answer.statusCode() == 404 || answer.statusCode() == 410) {
                throw new LeaseLost(text(answer.body(), "detail"));
            }
            check(answer.statusCode() == 200, "renew: " + answer.statusCode() + answer.body());
            note(answer.body(), sent);
        }

        /** Simulates work for some seconds, and renews at `renewAt`. */
        void hold(long seconds) throws Exception {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
            while (renewAt - end < 0) {
                TimeUnit.NANOSECONDS.sleep(renewAt - System.nanoTime());
                renew();
            }
            TimeUnit.NANOSECONDS.sleep(end - System.nanoTime());
            check(isValid(), worker.name + " lost the lock while it renewed it");
        }

        void release() throws Exception {
            HttpRequest request = HttpRequest.newBuilder(uri).DELETE().build();
            HttpResponse<String> answer = worker.http.send(request, BodyHandlers.ofString());
            int status = answer.statusCode();
            check(status == 202 || status == 204, "release: " + status + " " + answer.body());
        }
    }

    /** B's long poll is answered when A releases. Returns B's lease. */
    static Lease waitInLine(Worker a, Worker b, String resource, int hold, int wait)
            throws Exception {
        Lease first = a.acquire(resource, 0);
        check(first.acquired, "A's answer does not have acquired: true");
        System.out.println("A has the lock with token " + first.token);
        for (int seconds : new int[] {0, 2}) {
            try {
                b.acquire(resource, seconds);
                throw new AssertionError("B was granted a lock that A has");
            } catch (LockHeld refused) {
                System.out.printf("B waits for %d s and is refused: %s%n",
                        seconds, refused.getMessage());
            }
        }

        long sent = System.nanoTime();
        CompletableFuture<HttpResponse<String>> waiting = b.acquireInLine(resource, wait);
        first.hold(hold);
        if (waiting.isDone()) {
            String answer = waiting.get().body();
            throw new AssertionError("B was answered while A held the lock: " + answer);
        }
        first.release();
        Lease second = b.granted(waiting.get(10, TimeUnit.SECONDS), sent);
        double waited = (System.nanoTime() - sent) / 1e9;

        System.out.printf("B has the lock with token %d, after %.2f s%n", second.token, waited);
        check(second.acquired, "B's answer does not have acquired: true");
        check(second.token > first.token, "token " + second.token + " came after " + first.token);
        check(second.tokenHeader.equals("" + second.token), "X-Fencing-Token is another token");
        check(second.isValid(), "B's lease was over when its answer arrived");
        second.renew();
        check(second.isValid(), "B's lease was over when it was renewed");
        return second;
    }

    /** A cancels its long poll, and its queue entry is removed. */
    static void goAwayFromTheLine(Worker a, String resource, Lease lease) throws Exception {
        // The list can be slightly stale, and may still show the entry that B had before it got the lock.
        waitUntil("the queue is empty", () -> a.queueLength(resource) == 0);
        CompletableFuture<HttpResponse<String>> waiting = a.acquireInLine(resource, 100);
        waitUntil("A is queued", () -> a.queueLength(resource) == 1);
        check(waiting.cancel(true), "A's long poll was answered while B held the lock");
        System.out.println("A cancelled its request");
        waitUntil("A's queue entry is removed", () -> a.queueLength(resource) == 0);
        check(lease.isValid(), "B lost its lease meanwhile");
    }

    /** A caller that cancelled does not keep the lock: the next caller gets it. */
    static void releaseAndBeTold(Worker a, String resource, Lease lease) throws Exception {
        lease.release();
        try {
            lease.renew();
            throw new AssertionError("a released lease was renewed");
        } catch (LeaseLost lost) {
            System.out.println("B's renewal fails: " + lost.getMessage());
        }
        // The release can arrive before A's entry is removed. The agent then releases that grant
        // immediately, so wait.
        Lease last = a.acquire(resource, 10);
        System.out.println("A has the lock with token " + last.token);
        check(last.token > lease.token, "token " + last.token + " came after " + lease.token);
        last.release();
    }

    static void waitUntil(String what, Callable<Boolean> isSo) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
        while (!isSo.call()) {
            check(System.nanoTime() - end < 0, "timed out waiting until " + what);
            Thread.sleep(50);
        }
    }

    // The JDK has no JSON parser. An app uses a library; these two functions suffice for flat answers.

    static String text(String json, String field) {
        var found = Pattern.compile("\"" + field + "\":\"((?:[^\"\\\\]|\\\\.)*)\"").matcher(json);
        check(found.find(), "no " + field + " in " + json);
        return found.group(1);
    }

    static long number(String json, String field) {
        var found = Pattern.compile("\"" + field + "\":(\\d+)").matcher(json);
        check(found.find(), "no " + field + " in " + json);
        return Long.parseLong(found.group(1));
    }

    static void check(boolean isSo, String words) {
        if (!isSo) {
            throw new AssertionError(words);
        }
    }

    public static void main(String[] arguments) {
        List<String> urls = new ArrayList<>();
        int hold = 12;
        int wait = 100;
        for (int i = 0; i < arguments.length; i++) {
            switch (arguments[i]) {
                case "--hold" -> hold = Integer.parseInt(arguments[++i]);
                case "--wait" -> wait = Integer.parseInt(arguments[++i]);
                default -> urls.add(arguments[i]);
            }
        }
        try {
            check(!urls.isEmpty(), "usage: java Client.java URL_OF_A [URL_OF_B]");
            HttpClient http = HttpClient.newHttpClient();
            Worker a = new Worker("java-a", urls.get(0), http);
            Worker b = new Worker("java-b", urls.get(urls.size() - 1), http);
            String resource = "clients:java:" + UUID.randomUUID();
            Lease lease = waitInLine(a, b, resource, hold, wait);
            goAwayFromTheLine(a, resource, lease);
            releaseAndBeTold(a, resource, lease);
            System.out.println("passed");
        } catch (Exception | AssertionError failure) {
            System.err.println("Client.java failed: " + failure);
            System.exit(1);
        }
    }
}
