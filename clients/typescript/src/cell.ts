/**
 * The state of a lease, in memory that the app's thread and the worker share. It is the only place
 * that decides whether a lease is valid. The worker prolongs it while the app's thread computes,
 * and the app's thread reads the truth without a turn of its event loop.
 */

import type { Clock } from "./clock.js";

/** Why a lease has ended. */
export interface End {
  readonly reason: string;
  readonly detail: string;
  /** The app itself has released it. By the sidecar's reason `released`, another process has. */
  readonly isRelease?: true;
}

const TEXT_BYTES = 480;
const NUMBERS = 3;
/** Indices of the numbers. */
const DEADLINE = 0;
const STATE = 1;
const TEXT_LENGTH = 2;

const HELD = 0n;
const RELEASED = 1n;
const OVER = 2n;
/** The text has the reason. */
const LOST = 3n;

/** The deadline of a lease, and how it ended. The first end wins, and stays. */
export class Cell {
  readonly buffer: SharedArrayBuffer;
  readonly #clock: Clock;
  readonly #numbers: BigInt64Array;
  readonly #text: Buffer;

  constructor(clock: Clock, buffer = new SharedArrayBuffer(NUMBERS * 8 + TEXT_BYTES)) {
    this.buffer = buffer;
    this.#clock = clock;
    this.#numbers = new BigInt64Array(buffer, 0, NUMBERS);
    this.#text = Buffer.from(buffer, NUMBERS * 8, TEXT_BYTES);
  }

  /** Takes a deadline from the sidecar. Returns false if the lease has ended. */
  prolong(deadline: number): boolean {
    Atomics.store(this.#numbers, DEADLINE, BigInt(Math.floor(deadline)));
    return Atomics.load(this.#numbers, STATE) === HELD;
  }

  /** The time at which it ends, by the clock, if nothing prolongs it. */
  get deadline(): number {
    return Number(Atomics.load(this.#numbers, DEADLINE));
  }

  /** Returns whether the deadline has passed. */
  isOver(): boolean {
    return this.#clock.now() >= this.deadline;
  }

  /** Returns for how many milliseconds the lease is certainly valid; 0 if it has ended. */
  remaining(): number {
    // `now` may be a step early the next time, and still end the lease.
    const left = this.deadline - this.#clock.now() - this.#clock.step;
    return this.ended() === undefined ? Math.max(0, left) : 0;
  }

  /** Returns how it has ended, if it has. The deadline counts, not what a thread saw. */
  ended(): End | undefined {
    let state = Atomics.load(this.#numbers, STATE);
    if (state === HELD && this.isOver()) {
      state = this.#end(OVER) ? OVER : Atomics.load(this.#numbers, STATE);
    }
    switch (state) {
      case HELD:
        return undefined;
      case RELEASED:
        return { reason: "released", detail: "the app has released the lock", isRelease: true };
      case OVER:
        return { reason: "validity_over", detail: "no renewal came in time" };
      default:
        return this.#read();
    }
  }

  /** Ends it because the app releases it. Returns how it had ended before. */
  release(): End | undefined {
    const end = this.ended();
    return end === undefined && !this.#end(RELEASED) ? this.ended() : end;
  }

  /** Ends it as lost. Only the worker calls this, or the app's thread after the worker's end. */
  lose(reason: string, detail: string): void {
    if (Atomics.load(this.#numbers, STATE) !== HELD) {
      return;
    }
    const length = this.#text.write(`${reason}\n${detail}`);
    Atomics.store(this.#numbers, TEXT_LENGTH, BigInt(length));
    this.#end(LOST);
  }

  #end(state: bigint): boolean {
    return Atomics.compareExchange(this.#numbers, STATE, HELD, state) === HELD;
  }

  #read(): End {
    const length = Number(Atomics.load(this.#numbers, TEXT_LENGTH));
    const text = this.#text.toString("utf8", 0, length);
    const split = text.indexOf("\n");
    return { reason: text.slice(0, split), detail: text.slice(split + 1) };
  }
}
