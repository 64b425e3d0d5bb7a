/** The clock of all deadlines. */

import { openSync, readSync } from "node:fs";

/** The time in /proc/uptime has hundredths of a second, rounded down. */
const UPTIME_STEP = 10;

/** Returns the open /proc/uptime, if the system has one. */
export function openUptime(): number | undefined {
  try {
    return openSync("/proc/uptime", "r");
  } catch {
    return undefined;
  }
}

/**
 * Milliseconds that never step. With /proc/uptime, the only place where Node finds CLOCK_BOOTTIME,
 * they also run while the machine sleeps. Both threads read the same file, so their times agree.
 */
export class Clock {
  /** How exact the times are. */
  readonly step: number;
  readonly #uptime: number | undefined;
  readonly #text = Buffer.alloc(32);

  constructor(uptime: number | undefined) {
    this.#uptime = uptime;
    this.step = uptime === undefined ? 1 : UPTIME_STEP;
  }

  /** Returns the time, rounded up: a deadline is never over later than it says. */
  now(): number {
    const time = this.#floor();
    // Without a clock, no lease is valid.
    return Number.isNaN(time) ? Number.POSITIVE_INFINITY : time + this.step;
  }

  /** Returns the time, rounded down: what counts from it ends no later than promised. */
  sent(): number {
    const time = this.#floor();
    return Number.isNaN(time) ? 0 : time;
  }

  #floor(): number {
    if (this.#uptime === undefined) {
      return Number(process.hrtime.bigint() / 1_000_000n);
    }
    try {
      const length = readSync(this.#uptime, this.#text, 0, this.#text.length, 0);
      return Math.round(Number.parseFloat(this.#text.toString("latin1", 0, length)) * 1000);
    } catch {
      return Number.NaN;
    }
  }
}
