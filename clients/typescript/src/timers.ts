/** Timers of the worker, by the clock of the deadlines. */

import type { Clock } from "./clock.js";
import { safely } from "./safely.js";

/** Node's timers stand still while the machine sleeps, so a later time is looked up this often. */
const TICK = 1000;

/** A function to call at a time. */
export interface Timer {
  cancel(): void;
}

class Waiting implements Timer {
  armed: NodeJS.Timeout | undefined;

  constructor(
    readonly time: number,
    readonly call: () => void,
    readonly all: Set<Waiting>,
  ) {}

  cancel(): void {
    clearTimeout(this.armed);
    this.all.delete(this);
  }
}

export class Timers {
  readonly #clock: Clock;
  readonly #waiting = new Set<Waiting>();

  constructor(clock: Clock) {
    this.#clock = clock;
    setInterval(() => this.#tick(), TICK);
  }

  /** Calls a function at a time of the clock. */
  at(time: number, call: () => void): Timer {
    const timer = new Waiting(time, call, this.#waiting);
    this.#waiting.add(timer);
    this.#arm(timer, this.#clock.now());
    return timer;
  }

  #tick(): void {
    const now = this.#clock.now();
    for (const timer of this.#waiting) {
      this.#arm(timer, now);
    }
  }

  #arm(timer: Waiting, now: number): void {
    const left = timer.time - now;
    if (timer.armed === undefined && left < 2 * TICK) {
      timer.armed = setTimeout(() => this.#fire(timer), Math.max(1, left));
    }
  }

  /** What has arrived is read first: a process that stood still must not take its answers for late. */
  #fire(timer: Waiting): void {
    setImmediate(() => {
      if (this.#waiting.delete(timer)) {
        safely(timer.call);
      }
    });
  }
}
