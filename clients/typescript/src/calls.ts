/** Calls of the worker that have one answer. */

import { failureOf, noAnswer, passes } from "./errors.js";
import { type Answer, type Call, Exchange, type Handler } from "./exchange.js";
import type { Address, Failure } from "./messages.js";
import type { Context } from "./worker.js";

/** How long a call may take that does not wait for a lock. */
export const CALL_MS = 10_000;
/** A call that must be answered is repeated after this time, or after a pause. */
const ATTEMPT_MS = 3000;
const PAUSE_MS = 200;

/** What became of a call: an answer of success, or a failure. */
export type Outcome =
  | { readonly answer: Answer; readonly failure?: undefined }
  | { readonly failure: Failure };

/** The calls to one sidecar. */
export class Calls {
  readonly #context: Context;
  readonly #address: Address;

  constructor(context: Context, address: Address) {
    this.#context = context;
    this.#address = address;
  }

  /** Sends a call that the handler follows. */
  send(call: Call, handler: Handler, until?: number): Exchange {
    return new Exchange(this.#context, this.#address, call, handler, until);
  }

  /** Sends a call once. */
  once(call: Call, done: (outcome: Outcome) => void, time = CALL_MS): void {
    const handler: Handler = {
      answered: (answer) => {
        const { status, document } = answer;
        done(status < 300 ? { answer } : { failure: failureOf(status, document) });
      },
      broke: (why) => done({ failure: noAnswer(why) }),
    };
    this.send(call, handler, this.#context.clock.now() + time);
  }

  /** Sends a call until it is answered: what was acquired must not stay held. */
  persist(call: Call, done: (outcome: Outcome) => void, time = CALL_MS): void {
    const { clock, timers } = this.#context;
    const until = clock.now() + time;
    const attempt = (): void => {
      const left = Math.min(ATTEMPT_MS, until - clock.now());
      this.once(call, repeatOrDone, left);
    };
    const repeatOrDone = (outcome: Outcome): void => {
      const next = clock.now() + PAUSE_MS;
      if (outcome.failure !== undefined && passes(outcome.failure) && next < until) {
        timers.at(next, attempt);
      } else {
        done(outcome);
      }
    };
    attempt();
  }

  /** Tells the sidecar that a lease has ended. Without an answer its lock is free later. */
  release(leaseId: string, done: (failure?: Failure) => void, time = CALL_MS): void {
    const call = { method: "DELETE", path: leasePath(leaseId) } as const;
    this.persist(call, (outcome) => done(outcome.failure ?? pendingOf(outcome.answer)), time);
  }
}

/** Returns the path of a lease's calls. */
export function leasePath(leaseId: string): string {
  return `/v1/locks/${encodeURIComponent(leaseId)}`;
}

/** A release that the API server has not confirmed yet. */
function pendingOf({ status, document }: Answer): Failure | undefined {
  const detail = String(document.detail ?? "the sidecar continues to try");
  return status === 202
    ? { kind: "unavailable", detail, code: "release_pending", document }
    : undefined;
}
