// Does what the conformance suite says (clients/README.md): calls are lines of JSON on the standard
// input, answers are lines on the standard output.
//
//     node driver.mjs import|require URL

import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [style, url] = process.argv.slice(2);
/** @type {typeof import("leasehold")} */
const leasehold =
  style === "require" ? createRequire(import.meta.url)("leasehold") : await import("leasehold");
const { LeaseholdError, LockHeld, LockLost, Refused, Unavailable } = leasehold;
const client = new leasehold.Client(url);

/** @typedef {{ id: number, call: string, [field: string]: any }} Call */
/** @typedef {import("leasehold").Lease} Lease */

/** The guarded blocks, by the name of their lease: what takes the next call. */
/** @type {Map<string, Calls>} */
const blocks = new Map();
/** @type {Map<string, import("leasehold").Election>} */
const elections = new Map();
/** @type {Lease[]} */
const many = [];

/** @param {object} line */
function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

/** @param {Call} call @param {object} [values] */
function answer(call, values) {
  say({ id: call.id, ...values });
}

/** @param {Call} call @param {unknown} error */
function refuse(call, error) {
  const kinds = { held: LockHeld, lost: LockLost, unavailable: Unavailable, refused: Refused };
  const kind = Object.entries(kinds).find(([, made]) => error instanceof made)?.[0];
  const code = error instanceof LeaseholdError ? error.code : "";
  answer(call, { error: kind ?? "other", code, detail: String(error) });
}

/** The suite has seconds, or null. @param {Call} call */
function options({ wait, ttl }) {
  return {
    wait: wait == null ? undefined : wait * 1000,
    ttl: ttl == null ? undefined : ttl * 1000,
  };
}

/** The calls about one lease, in their order. */
class Calls {
  /** @type {Call[]} */
  #early = [];
  /** @type {((call: Call) => void) | undefined} */
  #next;

  /** @param {Call} call */
  put(call) {
    if (this.#next === undefined) {
      this.#early.push(call);
    } else {
      this.#next(call);
      this.#next = undefined;
    }
  }

  /** @returns {Promise<Call>} */
  get() {
    const early = this.#early.shift();
    return early === undefined
      ? new Promise((resolve) => {
          this.#next = resolve;
        })
      : Promise.resolve(early);
  }
}

/** A guarded block, which ends with the call `release`. @param {Call} lock */
async function block(lock) {
  const calls = new Calls();
  blocks.set(lock.lease, calls);
  let call = lock;
  try {
    await client.using(lock.resource, options(lock), async (lease, signal) => {
      signal.addEventListener("abort", () => say({ lost: lock.lease, reason: signal.reason.code }));
      answer(call, { token: lease.token, leaseId: lease.leaseId });
      for (call = await calls.get(); call.call !== "release"; call = await calls.get()) {
        ask(lease, call);
      }
    });
    answer(call);
  } catch (error) {
    refuse(call, error);
  }
}

/** @param {Lease} lease @param {Call} call */
function ask(lease, call) {
  try {
    if (call.call === "check") {
      lease.check();
      answer(call, { remaining: lease.remaining / 1000 });
    } else {
      answer(call, { headers: lease.headers });
    }
  } catch (error) {
    refuse(call, error);
  }
}

/** @param {Call} call */
async function elect(call) {
  const election = elections.get(call.election);
  if (call.call === "elect") {
    elections.set(call.election, client.elect(call.election));
    answer(call);
  } else if (call.call === "leads") {
    const lease = election?.lease;
    answer(call, { leads: lease !== undefined, token: lease?.token ?? null });
  } else {
    elections.delete(call.election);
    await election?.stop();
    answer(call);
  }
}

/** @param {Call} call */
async function run(call) {
  switch (call.call) {
    case "lock":
      return block(call);
    case "elect":
    case "leads":
    case "step-down":
      return elect(call);
    case "many":
      for (let n = 0; n < call.count; n++) {
        many.push(await client.lock(`${call.resource}-${n}`, options(call)));
      }
      return answer(call, { held: many.length });
    case "round": {
      const start = performance.now();
      await client.using(call.resource, options(call), () => {});
      return answer(call, { ms: performance.now() - start });
    }
    case "check-many":
      return answer(call, { held: many.filter((lease) => lease.remaining > 0).length });
    case "busy": {
      // The event loop is blocked on purpose.
      const end = performance.now() + call.seconds * 1000;
      while (performance.now() < end);
      return answer(call);
    }
    case "start":
      return answer(call, { pid: spawn("sleep", ["120"], { stdio: "ignore" }).pid });
    default:
      return blocks.get(call.lease)?.put(call);
  }
}

createInterface({ input: process.stdin }).on("line", (line) => {
  const call = JSON.parse(line);
  run(call).catch((error) => refuse(call, error));
});
say({ version: leasehold.version });
