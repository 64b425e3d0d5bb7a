/**
 * Holding a lock by a connection: `POST /v1/locks/hold`, or a candidacy. The sidecar keeps the lock
 * while the connection is open.
 */

import { Acquisition, grantOf, NO_SIDECAR } from "./acquisition.js";
import type { HeartbeatEvent, LostEvent } from "./api.js";
import { CALL_MS } from "./calls.js";
import { failureOf, noAnswer } from "./errors.js";
import type { Event } from "./events.js";
import type { Holding } from "./holding.js";
import type { Document, Unchecked } from "./messages.js";

/** A waiting stream has an event at least every 40 s. */
const SILENCE_MS = 90_000;

export class ByConnection extends Acquisition {
  protected override readonly isLongPoll = false;

  protected override attempt(): void {
    const { wanted } = this;
    const left = this.waitLeft();
    const path = wanted.isLead
      ? `/v1/elections/${encodeURIComponent(wanted.name)}/candidacy`
      : "/v1/locks/hold";
    const body = left === undefined ? wanted.body : { ...wanted.body, waitSeconds: left };
    this.sent = this.context.clock.sent();
    this.exchange = this.calls.send(
      { method: "POST", path, body },
      {
        answered: (answer) => {
          this.next?.cancel();
          this.answered(answer);
        },
        received: (event) => this.#received(event),
        broke: (why, isOurs) => this.#broke(why, isOurs),
      },
    );
    this.#expectEvent();
  }

  protected override abandon(done: () => void): void {
    this.exchange?.close();
    done();
  }

  #expectEvent(): void {
    this.next?.cancel();
    const { exchange } = this;
    const left = this.waitLeft() ?? SILENCE_MS;
    const time = Math.min(SILENCE_MS, left * 1000 + CALL_MS);
    this.next = this.context.timers.at(this.context.clock.now() + time, () =>
      exchange?.fail("it did not answer in time"),
    );
  }

  #received(event: Event): void {
    if (this.holding !== undefined) {
      this.#follow(this.holding, event);
    } else if (event.name === "acquired") {
      this.next?.cancel();
      this.#acquired(event.data);
    } else if (event.name === "error") {
      this.next?.cancel();
      this.exchange?.close();
      const { status } = event.data;
      this.refused(failureOf(typeof status === "number" ? status : 500, event.data));
    } else {
      // `waiting`, or a later version's event: a sign of life.
      this.endOutage();
      this.#expectEvent();
    }
  }

  #acquired(data: Document): void {
    const grant = grantOf(data);
    if (grant === undefined || !this.granted(grant)) {
      this.exchange?.close();
      this.refused(grant === undefined ? NO_SIDECAR : noAnswer("the answer came too late"));
    }
  }

  #follow(holding: Holding, { name, data }: Event): void {
    if (name === "lost") {
      const { reason, detail }: Unchecked<LostEvent> = data;
      holding.lose(String(reason ?? "lost"), String(detail ?? ""));
      return;
    }
    const { validForMs }: Unchecked<HeartbeatEvent> = data;
    if (typeof validForMs === "number") {
      holding.prolong(this.deadline(validForMs));
    }
    if (name === "release-requested") {
      holding.askForRelease(data);
    }
  }

  #broke(why: string, isOurs: boolean): void {
    this.next?.cancel();
    if (this.holding === undefined) {
      this.broke(why);
    } else if (isOurs) {
      // The sidecar releases the lock at once.
      this.holding.lose("not_a_sidecar", why);
    } else {
      // The sidecar is gone, and keeps its promise until the deadline.
      this.holding.doubt(why);
    }
  }
}
