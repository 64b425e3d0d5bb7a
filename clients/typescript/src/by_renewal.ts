/**
 * Holding a lock by renewals: `POST /v1/locks/acquire`, then `renew` in time. No connection stays
 * open, and the lease survives a restart of the sidecar alone.
 */

import { randomUUID } from "node:crypto";
import { Acquisition, grantOf, NO_SIDECAR } from "./acquisition.js";
import type { AcquireRequest, Lease } from "./api.js";
import { CALL_MS, leasePath } from "./calls.js";
import { failureOf, noAnswer } from "./errors.js";
import type { Answer, Call, Handler } from "./exchange.js";
import type { Holding } from "./holding.js";
import type { Failure, Unchecked } from "./messages.js";

/** The sidecar's own bound for a long poll. */
const LONGEST_POLL = 240;
/** For a server that does not wait. */
const SHORTEST_POLL_MS = 1000;
const LONGEST_PAUSE_MS = 1000;
const SHORTEST_PAUSE_MS = 50;

export class ByRenewal extends Acquisition {
  protected override readonly isLongPoll = true;
  /** Makes a repetition safe: an answer that got lost takes no second lock. */
  #requestId = randomUUID();
  /** A try had no answer. */
  #mayBeGranted = false;

  /** The lease is lost. The sidecar may still hold it. */
  override drop(): void {
    super.drop();
    this.calls.release(this.leaseId, () => {});
  }

  protected override attempt(): void {
    const poll = Math.min(this.waitLeft() ?? LONGEST_POLL, LONGEST_POLL);
    this.sent = this.context.clock.sent();
    const handler: Handler = {
      answered: (answer) => {
        this.exchange = undefined;
        this.answered(answer);
      },
      broke: (why) => {
        this.exchange = undefined;
        this.broke(why);
      },
    };
    const until = this.context.clock.now() + poll * 1000 + CALL_MS;
    this.exchange = this.calls.send(this.#acquireCall(poll), handler, until);
  }

  /**
   * The answer may be under way, or lost: the same request returns its lease, to be released. It
   * also ends the queue entry that the sidecar keeps for a client that hangs up, so it comes after
   * that.
   */
  protected override abandon(done: () => void): void {
    if (this.exchange !== undefined) {
      this.exchange.hangUp(() => this.#giveBack(done));
    } else if (this.#mayBeGranted) {
      this.#giveBack(done);
    } else {
      done();
    }
  }

  protected override answered(answer: Answer): void {
    // One that only could not be served says nothing of the tries before it.
    const isServed = failureOf(answer.status, answer.document).kind !== "unavailable";
    this.#mayBeGranted &&= !isServed;
    if (answer.status !== 200) {
      super.answered(answer);
      return;
    }
    const grant = grantOf(answer.document);
    if (grant === undefined) {
      this.refused(NO_SIDECAR);
    } else if (this.granted(grant)) {
      this.#renewAt(this.sent + grant.renewAfterMs);
    } else {
      this.calls.release(grant.leaseId, () => {});
      this.#requestId = randomUUID();
      this.refused(noAnswer("the answer came too late"));
    }
  }

  protected override broke(why: string): void {
    this.#mayBeGranted = true;
    super.broke(why);
  }

  protected override refused(failure: Failure): void {
    if (failure.kind === "held" && !this.isWaitOver()) {
      // One long poll is over, not the wait.
      this.endOutage();
      this.#requestId = randomUUID();
      const time = Math.max(this.context.clock.now(), this.sent + SHORTEST_POLL_MS);
      this.next = this.context.timers.at(time, () => this.attempt());
    } else if (failure.kind === "lost") {
      // An earlier answer did not arrive, and its lease has ended.
      this.#requestId = randomUUID();
      super.refused({ ...failure, kind: "unavailable" });
    } else {
      super.refused(failure);
    }
  }

  #acquireCall(waitSeconds: number): Call {
    const { name: resource, body, ttlSeconds = 0 } = this.wanted;
    const requestId = this.#requestId;
    const request: AcquireRequest = { ...body, resource, ttlSeconds, waitSeconds, requestId };
    return { method: "POST", path: "/v1/locks/acquire", body: request };
  }

  /** Releases what the last request was granted, if it was. */
  #giveBack(done: () => void): void {
    this.calls.persist(this.#acquireCall(0), (outcome) => {
      const grant = outcome.failure === undefined ? grantOf(outcome.answer.document) : undefined;
      if (grant === undefined) {
        done();
      } else {
        this.calls.release(grant.leaseId, () => done());
      }
    });
  }

  #renewAt(time: number): void {
    const soon = this.context.clock.now() + SHORTEST_PAUSE_MS;
    this.next = this.context.timers.at(Math.max(time, soon), () => this.#renew());
  }

  #renew(): void {
    const { holding } = this;
    const remaining = holding?.remaining ?? 0;
    if (holding === undefined || remaining <= 0) {
      return;
    }
    const path = `${leasePath(holding.grant.leaseId)}/renew`;
    const call = { method: "POST", path, body: {}, isQuick: true } as const;
    const sent = this.context.clock.sent();
    const handler: Handler = {
      answered: (answer) => this.#renewed(holding, sent, answer),
      broke: (why) => this.#notRenewed(holding, why),
    };
    // Leaves time for another try.
    this.exchange = this.calls.send(call, handler, sent + Math.min(CALL_MS, remaining / 2));
  }

  #renewed(holding: Holding, sent: number, { status, document }: Answer): void {
    const { validForMs, renewAfterMs, releaseRequested }: Unchecked<Lease> = document;
    if (status === 200 && typeof validForMs === "number" && typeof renewAfterMs === "number") {
      this.sent = sent;
      holding.prolong(this.deadline(validForMs));
      if (typeof releaseRequested === "object" && releaseRequested !== null) {
        holding.askForRelease({ ...releaseRequested });
      }
      this.#renewAt(sent + renewAfterMs);
      return;
    }
    const failure = failureOf(status, document);
    if (failure.kind === "lost") {
      holding.lose(failure.code, failure.detail);
    } else {
      this.#notRenewed(holding, failure.detail);
    }
  }

  /** The last validity still counts. */
  #notRenewed(holding: Holding, why: string): void {
    holding.doubt(why);
    const pause = Math.max(SHORTEST_PAUSE_MS, holding.remaining / 4);
    this.#renewAt(this.context.clock.now() + Math.min(LONGEST_PAUSE_MS, pause));
  }
}
