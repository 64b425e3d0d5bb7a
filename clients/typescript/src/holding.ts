/** A granted lease in the worker: it is prolonged here, and ends at its deadline. */

import type { Cell } from "./cell.js";
import type { Document, FromWorker, Grant } from "./messages.js";
import type { Timer } from "./timers.js";
import type { Context } from "./worker.js";

/** What a way to hold a lock does at the end of a lease. */
export interface Way {
  /** The lease is lost: stops what prolongs it, and frees what is left of it. */
  drop(): void;
}

export class Holding {
  readonly grant: Grant;
  readonly #context: Context;
  readonly #lease: number;
  readonly #cell: Cell;
  readonly #way: Way;
  #doubt = "";
  #isSettled = false;
  #watch: Timer | undefined;

  constructor(context: Context, lease: number, cell: Cell, grant: Grant, way: Way) {
    this.#context = context;
    this.#lease = lease;
    this.#cell = cell;
    this.grant = grant;
    this.#way = way;
  }

  /** Milliseconds; 0 if it has ended. */
  get remaining(): number {
    return this.#cell.remaining();
  }

  /** Takes a new deadline. A lease that has ended stays ended. */
  prolong(deadline: number): void {
    this.#doubt = "";
    if (!this.#cell.prolong(deadline)) {
      this.#settle();
    }
  }

  /** Remembers why no new deadline may come. */
  doubt(why: string): void {
    this.#doubt = `: ${why}`;
  }

  /** Takes a request to release. */
  askForRelease(request: Document): void {
    this.#post({ is: "asked", lease: this.#lease, request });
  }

  /** Ends it: the sidecar said so. */
  lose(reason: string, detail: string): void {
    this.#cell.lose(reason, detail);
    this.#settle();
  }

  /** Ends it at the deadline, also if the app does not ask. */
  watch(): void {
    this.#watch = this.#context.timers.at(this.#cell.deadline, () => {
      if (this.#cell.isOver()) {
        this.lose("validity_over", `no renewal came in time${this.#doubt}`);
      } else {
        this.watch();
      }
    });
  }

  /** Stops the watch: the lease has ended. */
  stop(): void {
    this.#watch?.cancel();
  }

  /** Does once what follows the end. A release does it by itself. */
  #settle(): void {
    if (!this.#isSettled && this.#cell.ended()?.isRelease !== true) {
      this.#isSettled = true;
      this.#way.drop();
      this.#post({ is: "lost", lease: this.#lease });
    }
  }

  #post(message: FromWorker): void {
    this.#context.post(message);
  }
}
