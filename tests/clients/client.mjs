// A long poll with Node's own fetch.
//
//     node client.mjs URL_OF_A [URL_OF_B] [--hold SECONDS] [--wait SECONDS]
//
// Two workers want one lock. A holds it; B is queued, and gets the lock when A releases it. Then A is
// queued, and cancels its request before it gets the lock. The URLs are those of the workers' sidecars,
// or of one sidecar for both. Exits with 0 on success, otherwise prints the error and exits with 1.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

/** Another holder has the lock; the message names it. */
class LockHeld extends Error {}

/** The lease is over: stop what the lock guards. */
class LeaseLost extends Error {}

/** An app with a sidecar. */
class Worker {
  constructor(name, url) {
    this.name = name;
    this.url = url;
  }

  async acquire(resource, { waitSeconds = 0, signal } = {}) {
    const sent = performance.now();
    const response = await fetch(`${this.url}/v1/locks/acquire`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ resource, ownerId: this.name, ttlSeconds: 30, waitSeconds }),
      signal,
    });
    const answer = await response.json();
    if (answer.code === 'lock_held') throw new LockHeld(answer.detail);
    if (!response.ok) throw new Error(`acquire: ${response.status} ${answer.detail}`);
    return new Lease(this, answer, response.headers.get('x-fencing-token'), sent);
  }

  async queueLength(resource) {
    const response = await fetch(`${this.url}/v1/locks?prefix=${encodeURIComponent(resource)}`);
    if (!response.ok) throw new Error(`list: ${response.status} ${await response.text()}`);
    return (await response.json()).locks[0].queueLength;
  }
}

/** A lock that a worker holds until `validUntil`. */
class Lease {
  constructor(worker, answer, tokenHeader, sent) {
    this.worker = worker;
    this.url = `${worker.url}/v1/locks/${answer.leaseId}`;
    this.acquired = answer.acquired;
    this.token = answer.fencingToken;
    this.tokenHeader = tokenHeader;
    this.note(answer, sent);
  }

  note(answer, sent) {
    // Both times count from when the request was sent, even if the answer was slow.
    this.validUntil = sent + answer.validForMs;
    this.renewAt = sent + answer.renewAfterMs;
  }

  isValid() {
    return performance.now() < this.validUntil;
  }

  async renew() {
    const sent = performance.now();
    const response = await fetch(`${this.url}/renew`, { method: 'POST' });
    const answer = await response.json();
    if (response.status === 404 || response.status === 410) throw new LeaseLost(answer.detail);
    if (!response.ok) throw new Error(`renew: ${response.status} ${answer.detail}`);
    this.note(answer, sent);
  }

  /** Simulates work for some seconds, and renews at `renewAt`. */
  async hold(seconds) {
    const end = performance.now() + seconds * 1000;
    while (this.renewAt < end) {
      await sleep(Math.max(0, this.renewAt - performance.now()));
      await this.renew();
    }
    await sleep(Math.max(0, end - performance.now()));
    assert(this.isValid(), `${this.worker.name} lost the lock while it renewed it`);
  }

  async release() {
    const response = await fetch(this.url, { method: 'DELETE' });
    const answer = await response.text();
    assert([202, 204].includes(response.status), `release: ${response.status} ${answer}`);
  }
}

/** B's long poll is answered when A releases. Returns B's lease. */
async function waitInLine(a, b, resource, { hold, wait }) {
  const first = await a.acquire(resource);
  assert.equal(first.acquired, true, "A's answer does not have acquired: true");
  console.log(`A has the lock with token ${first.token}`);
  for (const waitSeconds of [0, 2]) {
    await assert.rejects(b.acquire(resource, { waitSeconds }), (error) => {
      console.log(`B waits for ${waitSeconds} s and is refused: ${error.message}`);
      return error instanceof LockHeld;
    });
  }

  const sent = performance.now();
  let answered = false;
  const waiting = b.acquire(resource, { waitSeconds: wait }).finally(() => (answered = true));
  await Promise.race([first.hold(hold), waiting]);
  assert(!answered, 'B was answered while A held the lock');
  await first.release();
  const second = await waiting;
  const waited = (performance.now() - sent) / 1000;

  console.log(`B has the lock with token ${second.token}, after ${waited.toFixed(2)} s`);
  assert.equal(second.acquired, true, "B's answer does not have acquired: true");
  assert(second.token > first.token, `token ${second.token} came after ${first.token}`);
  assert.equal(second.tokenHeader, String(second.token), 'X-Fencing-Token is another token');
  assert(second.isValid(), "B's lease was over when its answer arrived");
  await second.renew();
  assert(second.isValid(), "B's lease was over when it was renewed");
  return second;
}

/** A cancels its long poll with an AbortController, and its queue entry is removed. */
async function goAwayFromTheLine(a, resource, lease) {
  // The list can be slightly stale, and may still show the entry that B had before it got the lock.
  await until('the queue is empty', async () => (await a.queueLength(resource)) === 0);
  const controller = new AbortController();
  const waiting = assert.rejects(
    a.acquire(resource, { waitSeconds: 100, signal: controller.signal }),
    { name: 'AbortError' },
  );
  await until('A is queued', async () => (await a.queueLength(resource)) === 1);
  controller.abort();
  await waiting;
  console.log('A cancelled its request');
  await until("A's queue entry is removed", async () => (await a.queueLength(resource)) === 0);
  assert(lease.isValid(), 'B lost its lease meanwhile');
}

/** A caller that cancelled does not keep the lock: the next caller gets it. */
async function releaseAndBeTold(a, resource, lease) {
  await lease.release();
  await assert.rejects(lease.renew(), (error) => {
    console.log(`B's renewal fails: ${error.message}`);
    return error instanceof LeaseLost;
  });
  // The release can arrive before A's entry is removed. The agent then releases that grant immediately,
  // so wait for it.
  const last = await a.acquire(resource, { waitSeconds: 10 });
  console.log(`A has the lock with token ${last.token}`);
  assert(last.token > lease.token, `token ${last.token} came after ${lease.token}`);
  await last.release();
}

async function until(what, isSo) {
  const end = performance.now() + 10_000;
  while (!(await isSo())) {
    assert(performance.now() < end, `timed out waiting until ${what}`);
    await sleep(50);
  }
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { hold: { type: 'string', default: '12' }, wait: { type: 'string', default: '100' } },
  });
  assert(positionals.length > 0, 'usage: node client.mjs URL_OF_A [URL_OF_B]');
  const a = new Worker('node-a', positionals[0]);
  const b = new Worker('node-b', positionals.at(-1));
  const resource = `clients:node:${randomUUID()}`;
  const times = { hold: Number(values.hold), wait: Number(values.wait) };
  const lease = await waitInLine(a, b, resource, times);
  await goAwayFromTheLine(a, resource, lease);
  await releaseAndBeTold(a, resource, lease);
  console.log('passed');
}

main().catch((error) => {
  // fetch reports the reason only in the cause; its message is just "fetch failed".
  console.error(`client.mjs failed: ${error.stack}`, error.cause ?? '');
  process.exitCode = 1;
});
