/**
 * How a lock is acquired: what both ways to hold it have in common. It runs in the worker.
 *
 * Every validity counts from when the request was sent: the sidecar counts from when it read the
 * request, which is later.
 */

import type { Acquired } from "./api.js";
import { CALL_MS, Calls, leasePath } from "./calls.js";
import type { Cell } from "./cell.js";
import { failureOf, noAnswer, passes } from "./errors.js";
import type { Answer, Exchange } from "./exchange.js";
import { Holding, type Way } from "./holding.js";
import type { Address, Failure, Grant, Unchecked, Wanted } from "./messages.js";
import type { Timer } from "./timers.js";
import type { Context } from "./worker.js";

/** How long a sidecar may be away, or unable to answer. A restart takes a few seconds. */
const OUTAGE_MS = 30_000;
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 2000;
/** No sidecar promises more. */
const LONGEST_VALIDITY_MS = 24 * 60 * 60 * 1000;

/** What makes an acquisition. */
export interface Start {
  readonly context: Context;
  readonly lease: number;
  readonly address: Address;
  readonly wanted: Wanted;
  readonly cell: Cell;
}

/**
 * Tries until there is a lease, the wait is over, or a failure is not worth another try. Then it
 * keeps and releases the lease.
 */
export abstract class Acquisition implements Way {
  protected readonly context: Context;
  protected readonly wanted: Wanted;
  protected readonly calls: Calls;
  protected holding: Holding | undefined;
  protected exchange: Exchange | undefined;
  /** The next try, the next renewal, or the time limit of an answer. */
  protected next: Timer | undefined;
  /** When the request was sent that the validity counts from. */
  protected sent = 0;
  readonly #start: Start;
  readonly #until: number | undefined;
  #outageSince: number | undefined;
  #pauses = 0;

  constructor(start: Start) {
    const { context, wanted } = start;
    this.#start = start;
    this.context = context;
    this.wanted = wanted;
    this.calls = new Calls(context, start.address);
    this.#until = wanted.wait === undefined ? undefined : context.clock.now() + wanted.wait;
  }

  /** Tries for the first time. */
  begin(): void {
    try {
      this.attempt();
    } catch (error) {
      // The arguments cannot be sent.
      const detail = error instanceof Error ? error.message : String(error);
      this.#fail({ kind: "refused", detail, code: "invalid_request", document: {} });
    }
  }

  /** Ends it because the caller does not wait any more: nothing must stay held. */
  leave(done: () => void): void {
    this.next?.cancel();
    if (this.holding === undefined) {
      this.abandon(done);
      this.#fail(noAnswer("the caller does not wait any more"));
    } else {
      this.#start.cell.release();
      this.release(done);
    }
  }

  /** Releases the lease: the app has ended it before. */
  release(done: (failure?: Failure) => void): void {
    this.next?.cancel();
    this.holding?.stop();
    const left = this.#start.cell.deadline - this.context.clock.now();
    const end = (failure?: Failure): void => {
      this.#close();
      this.context.forget(this.#start.lease);
      if (failure?.kind === "unavailable") {
        this.calls.release(this.leaseId, () => {});
      }
      done(failure);
    };
    this.calls.release(this.leaseId, end, Math.min(CALL_MS, left));
  }

  /** Records work in the lock. */
  complete(key: string, done: (failure?: Failure) => void): void {
    const path = `${leasePath(this.leaseId)}/complete`;
    this.calls.once({ method: "POST", path, body: { key } }, ({ failure }) => {
      if (failure?.kind === "lost") {
        this.holding?.lose(failure.code, failure.detail);
      }
      done(failure);
    });
  }

  /** The lease is lost. */
  drop(): void {
    this.next?.cancel();
    this.holding?.stop();
    this.context.forget(this.#start.lease);
    this.#close();
  }

  /** Empty before the grant. */
  protected get leaseId(): string {
    return this.holding?.grant.leaseId ?? "";
  }

  /** Whether a try says nothing while it waits. */
  protected abstract readonly isLongPoll: boolean;

  /** Sends the request for the lock. */
  protected abstract attempt(): void;

  /** Ends what waits for the lock. */
  protected abstract abandon(done: () => void): void;

  /** An answer without a stream that is not a grant. */
  protected answered({ status, document }: Answer): void {
    this.refused(failureOf(status, document));
  }

  protected broke(why: string): void {
    const advice = "start the sidecar, or set LEASEHOLD_URL to where it is";
    this.refused(noAnswer(`${why}; ${advice}`));
  }

  /** Tries again, or fails. */
  protected refused(failure: Failure): void {
    const now = this.context.clock.now();
    if (this.isLongPoll && now - this.sent > OUTAGE_MS) {
      // The sidecar was there for most of this try.
      this.endOutage();
    }
    this.#outageSince ??= now;
    if (this.isWaitOver() || !passes(failure) || now - this.#outageSince >= OUTAGE_MS) {
      this.abandon(() => {});
      this.#fail(failure);
      return;
    }
    if (this.#pauses === 0) {
      const message = `trying again: ${failure.detail} (${failure.code})`;
      this.context.post({ is: "warning", resource: this.wanted.name, message });
    }
    const pause = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.#pauses);
    this.#pauses += 1;
    this.next = this.context.timers.at(now + pause * (0.5 + Math.random() / 2), () =>
      this.attempt(),
    );
  }

  /** The sidecar is alive. */
  protected endOutage(): void {
    this.#outageSince = undefined;
    this.#pauses = 0;
  }

  protected isWaitOver(): boolean {
    return this.#until !== undefined && this.context.clock.now() >= this.#until;
  }

  /** In whole seconds, rounded up; undefined without a limit. */
  protected waitLeft(): number | undefined {
    const { clock } = this.context;
    const left = this.#until === undefined ? undefined : this.#until - clock.now();
    return left === undefined ? undefined : Math.max(0, Math.ceil(left / 1000));
  }

  /** Takes a grant. Returns false if it is over already. */
  protected granted(grant: Grant): boolean {
    const { lease, cell } = this.#start;
    const deadline = this.deadline(grant.validForMs);
    cell.prolong(deadline);
    if (cell.isOver()) {
      return false;
    }
    this.holding = new Holding(this.context, lease, cell, grant, this);
    this.holding.watch();
    this.context.post({ is: "settled", call: lease, grant });
    return true;
  }

  protected deadline(validForMs: number): number {
    return this.sent + Math.min(validForMs, LONGEST_VALIDITY_MS);
  }

  #close(): void {
    this.exchange?.close();
    this.exchange = undefined;
  }

  #fail(failure: Failure): void {
    this.context.forget(this.#start.lease);
    this.context.post({ is: "settled", call: this.#start.lease, failure });
  }
}

/** Returns the grant that a document describes, if it describes one. */
export function grantOf(document: Unchecked<Acquired>): Grant | undefined {
  const { resource, leaseId, fencingToken, ownerId, validForMs, renewAfterMs, completed } =
    document;
  const hasNames =
    typeof resource === "string" && typeof leaseId === "string" && typeof ownerId === "string";
  const hasNumbers =
    typeof fencingToken === "number" &&
    typeof validForMs === "number" &&
    typeof renewAfterMs === "number";
  if (!hasNames || !hasNumbers) {
    return undefined;
  }
  const keys = Array.isArray(completed) ? completed.map(String) : [];
  return { resource, leaseId, fencingToken, ownerId, validForMs, renewAfterMs, completed: keys };
}

/** The failure of an answer that only looks like a sidecar's. */
export const NO_SIDECAR: Failure = {
  kind: "refused",
  detail: "the answer is not a sidecar's; set LEASEHOLD_URL to where the sidecar is",
  code: "not_a_sidecar",
  document: {},
};
