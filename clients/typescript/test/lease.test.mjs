// A lease from its grant to its end.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "leasehold";
import { aborted, answer, eventText, GRANT, sidecar, stream } from "./sidecar.mjs";

/** @typedef {import("node:http").ServerResponse} Response */

/** @param {import("node:test").TestContext} t @param {object} [grant] */
async function held(t, grant = GRANT) {
  /** @type {Response | undefined} */
  let stream_;
  const { url, calls } = await sidecar(t, ({ method }, response) => {
    if (method === "POST") {
      stream_ = response;
      stream(response, ["acquired", grant]);
    } else {
      answer(response, 204);
    }
  });
  const client = new Client(url);
  /** @param {[string, object][]} events */
  const say = (...events) => stream(/** @type {Response} */ (stream_), ...events);
  return { client, calls, say, end: () => stream_?.end() };
}

const LOST = { leaseId: "lease.0", reason: "a_new_reason", detail: "it is over" };

test("events are read however they are split", async (t) => {
  const names = { resource: "😀 report", ownerId: "é" };
  const text = [
    eventText("waiting", { holder: { ownerId: "😀" } }),
    eventText("acquired", { ...GRANT, ...names }),
    eventText("an-event-of-a-later-version", { any: 1 }),
    eventText("heartbeat", { validForMs: 90_000 }),
    eventText("lost", { ...LOST, detail: "ü".repeat(600) }).replaceAll("\n", "\r\n"),
  ].join("");
  const { url } = await sidecar(t, async (_call, response) => {
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    for (const byte of Buffer.from(text)) {
      response.write(Buffer.of(byte));
      await sleep(0);
    }
  });
  const lease = await new Client(url).lock("😀 report");
  assert.deepEqual({ resource: lease.resource, ownerId: lease.ownerId }, names);
  await aborted(lease.signal);
  assert.equal(lease.reason, "a_new_reason");
  assert.match(lease.signal.reason.detail, /^ü+$/);
});

test("a stream that ends in the middle keeps its promise", async (t) => {
  const { client, say, end } = await held(t, { ...GRANT, validForMs: 1000 });
  const lease = await client.lock("report");
  say(["at-risk", {}]);
  end();
  await sleep(100);
  lease.check();
  await aborted(lease.signal);
  assert.equal(lease.reason, "validity_over");
  assert.match(lease.signal.reason.detail, /it ended the stream/);
});

test("a busy event loop sees the loss, and its release says so", async (t) => {
  const { client, calls } = await held(t, { ...GRANT, validForMs: 300 });
  const lease = await client.lock("report");
  const end = performance.now() + 400;
  while (performance.now() < end);
  assert.throws(() => lease.check(), { name: "LockLost", code: "validity_over" });
  assert.throws(() => lease.headers, { name: "LockLost" });
  assert.equal(lease.remaining, 0);
  assert.ok(lease.signal.aborted);
  await assert.rejects(lease.release(), { name: "LockLost" });
  await assert.rejects(lease.release(), { name: "LockLost" });
  assert.equal(calls.length, 1);
});

test("two releases send one request, and the stream is closed", async (t) => {
  const { client, calls } = await held(t);
  const lease = await client.lock("report");
  await Promise.all([lease.release(), lease.release(), lease[Symbol.asyncDispose]()]);
  assert.equal(calls.filter(({ method }) => method === "DELETE").length, 1);
  assert.equal(lease.reason, "released");
  assert.throws(() => lease.check(), { code: "released" });
  assert.ok(!lease.signal.aborted);
  await calls[0]?.closed;
});

test("a release without an answer is repeated, and one that is pending is a warning", async (t) => {
  let releases = 0;
  const { url } = await sidecar(t, ({ method }, response) => {
    if (method === "POST") {
      stream(response, ["acquired", GRANT]);
    } else {
      releases += 1;
      releases === 1 ? response.destroy() : answer(response, 202, { detail: "not confirmed" });
    }
  });
  const warned = once(process, "warning");
  await (await new Client(url).lock("report")).release();
  assert.equal(releases, 2);
  assert.match((await warned)[0].message, /not confirmed/);
});

test("a body's own error says more than the loss", async (t) => {
  const { client, say } = await held(t);
  const failed = client.using("report", async (_lease, signal) => {
    say(["lost", LOST]);
    await aborted(signal);
    throw new Error("mine");
  });
  await assert.rejects(failed, { message: "mine" });
});

test("what the lease's signal aborts ends with LockLost", async (t) => {
  const { client, say } = await held(t);
  const failed = client.using("report", async (_lease, signal) => {
    say(["lost", LOST]);
    await sleep(60_000, undefined, { signal });
  });
  await assert.rejects(failed, { name: "LockLost", code: "a_new_reason" });
});

test("a body that does not notice the loss ends with LockLost", async (t) => {
  const { client, say } = await held(t);
  const failed = client.using("report", async (lease) => {
    say(["lost", LOST], ["heartbeat", { validForMs: 90_000 }]);
    await aborted(lease.signal);
    return "done";
  });
  await assert.rejects(failed, { name: "LockLost" });
});

test("a request to release is seen", async (t) => {
  const { client, say } = await held(t);
  await client.using("report", async (lease) => {
    say(["release-requested", { reason: "person_asked", actor: "alice" }]);
    while (lease.releaseRequested === undefined) {
      await sleep(1);
    }
    assert.equal(lease.releaseRequested.actor, "alice");
  });
});

test("a renewal that is not answered is repeated in time", async (t) => {
  const times = { validForMs: 2000, renewAfterMs: 100 };
  let renewals = 0;
  const { url } = await sidecar(t, ({ path }, response) => {
    if (path.endsWith("/renew")) {
      renewals += 1;
      renewals > 1 && answer(response, 200, { ...times, validForMs: 60_000, renewAfterMs: 20_000 });
    } else {
      answer(response, 200, { ...GRANT, ...times });
    }
  });
  const lease = await new Client(url).lock("report", { ttl: 30_000 });
  while (lease.remaining < 30_000) {
    lease.check();
    await sleep(10);
  }
  assert.equal(renewals, 2);
});

test("a completion without an answer is not a success", async (t) => {
  const { url } = await sidecar(t, ({ path }, response) => {
    path.endsWith("/complete") ? response.destroy() : stream(response, ["acquired", GRANT]);
  });
  const lease = await new Client(url).lock("report");
  await assert.rejects(lease.complete("2026-04-01"), { name: "Unavailable" });
  lease.check();
});

test("a warning is one of the process, unless the app subscribes", async (t) => {
  const { client, say } = await held(t);
  const lease = await client.lock("report");
  const warned = once(process, "warning");
  say(["lost", LOST]);
  const [warning] = await warned;
  assert.equal(warning.name, "LeaseholdWarning");
  assert.match(warning.message, /report: lock lost/);
  assert.equal(lease.reason, "a_new_reason");
});
