// How a lock is acquired, and what a caller that stops waiting leaves behind.

import assert from "node:assert/strict";
import { createServer } from "node:net";
import { test } from "node:test";
import { Client } from "leasehold";
import { answer, GRANT, sidecar, stream } from "./sidecar.mjs";

const HELD = { code: "lock_held", detail: "alice has it", holder: { ownerId: "alice" } };

for (const ttl of [undefined, 30_000]) {
  const way = ttl === undefined ? "by a connection" : "by renewals";

  test(`a page of another server is refused, ${way}`, async (t) => {
    const { url, calls } = await sidecar(t, (_call, response) => {
      response.writeHead(200, { "Content-Type": "text/html" });
      response.end("<html>");
    });
    await assert.rejects(new Client(url).lock("report", { ttl }), { name: "Refused" });
    assert.equal(calls.length, 1);
  });

  test(`an answer without a lease is refused, ${way}`, async (t) => {
    const { url } = await sidecar(t, (_call, response) => {
      ttl === undefined ? stream(response, ["acquired", {}]) : answer(response, 200, {});
    });
    const refused = { name: "Refused", code: "not_a_sidecar" };
    await assert.rejects(new Client(url).lock("report", { ttl }), refused);
  });

  test(`what is not HTTP is no answer, ${way}`, async (t) => {
    const server = createServer((socket) => socket.end("\0\x01garbage").on("error", () => {}));
    await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
    t.after(() => server.close());
    const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
    const locked = new Client(`http://127.0.0.1:${port}`).lock("report", { ttl, wait: 500 });
    await assert.rejects(locked, { name: "Unavailable", code: "no_answer" });
  });

  test(`a busy sidecar is asked again, ${way}`, async (t) => {
    const { url, calls } = await sidecar(t, (_call, response, number) => {
      if (number === 1) {
        answer(response, 503, { code: "resuming", detail: "it has just restarted" });
      } else {
        ttl === undefined ? stream(response, ["acquired", GRANT]) : answer(response, 200, GRANT);
      }
    });
    const lease = await new Client(url).lock("report", { ttl });
    assert.equal(lease.token, 5);
    assert.equal(calls[0]?.body.requestId, calls[1]?.body.requestId);
  });

  test(`a lasting failure is reported at once, ${way}`, async (t) => {
    const failure = { code: "not_installed", detail: "apply the CRDs" };
    const { url, calls } = await sidecar(t, (_call, response) => answer(response, 503, failure));
    await assert.rejects(new Client(url).lock("report", { ttl }), { name: "Unavailable" });
    assert.equal(calls.length, 1);
  });

  test(`the error of a held lock has its holder, ${way}`, async (t) => {
    const { url } = await sidecar(t, (_call, response) => answer(response, 409, HELD));
    const locked = new Client(url).lock("report", { ttl, wait: -1 });
    await assert.rejects(locked, { name: "LockHeld", holder: { ownerId: "alice" } });
  });

  test(`a signal that is aborted before sends nothing, ${way}`, async (t) => {
    const { url, calls } = await sidecar(t, () => {});
    const signal = AbortSignal.abort(new Error("enough"));
    await assert.rejects(new Client(url).lock("report", { ttl, signal }), { message: "enough" });
    assert.equal(calls.length, 0);
  });
}

test("a stream whose times are over is opened again", async (t) => {
  const { url, calls } = await sidecar(t, (_call, response, number) => {
    stream(response, ["acquired", { ...GRANT, validForMs: number === 1 ? 0 : 60_000 }]);
  });
  await new Client(url).lock("report");
  assert.equal(calls.length, 2);
});

test("a caller that stops waiting closes its stream", async (t) => {
  const stop = new AbortController();
  const { url, calls } = await sidecar(t, (_call, response) => {
    stream(response, ["waiting", { queueLength: 1 }]);
    stop.abort(new Error("enough"));
  });
  const { signal } = stop;
  await assert.rejects(new Client(url).lock("report", { signal }), { message: "enough" });
  await calls[0]?.closed;
});

test("a caller that stops a long poll releases what it is granted", async (t) => {
  const stop = new AbortController();
  let freed = () => {};
  const free = new Promise((resolve) => {
    freed = () => resolve(undefined);
  });
  const { url, calls } = await sidecar(t, ({ method, body }, response) => {
    if (method === "DELETE") {
      answer(response, 204);
      freed();
    } else if (body.waitSeconds === 0) {
      answer(response, 200, GRANT);
    } else {
      stop.abort(new Error("enough"));
    }
  });
  const { signal } = stop;
  const locked = new Client(url).lock("report", { ttl: 30_000, signal });
  await assert.rejects(locked, { message: "enough" });
  await free;
  assert.deepEqual(
    calls.map(({ method, path }) => `${method} ${path}`),
    ["POST /v1/locks/acquire", "POST /v1/locks/acquire", "DELETE /v1/locks/lease.0"],
  );
  assert.equal(calls[0]?.body.requestId, calls[1]?.body.requestId);
});

test("each long poll has an id of its own", async (t) => {
  const { url, calls } = await sidecar(t, (_call, response, number) => {
    number === 1 ? answer(response, 409, HELD) : answer(response, 200, GRANT);
  });
  await new Client(url).lock("report", { ttl: 30_000 });
  assert.equal(calls[0]?.body.waitSeconds, 240);
  assert.notEqual(calls[0]?.body.requestId, calls[1]?.body.requestId);
});

test("arguments that cannot be sent are refused", async () => {
  const client = new Client("http://127.0.0.1:1");
  for (const wrong of [{ wait: Number.NaN }, { ttl: Number.POSITIVE_INFINITY }]) {
    await assert.rejects(client.lock("report", wrong), RangeError);
  }
  await assert.rejects(client.lock(/** @type {any} */ (undefined)), TypeError);
  await assert.rejects(client.using("report", /** @type {any} */ (undefined)), TypeError);
  for (const url of ["https://x", "x", "http://a/b", "unix://x", "http://u:p@x", "http://"]) {
    assert.throws(() => new Client(url), TypeError, url);
  }
});
