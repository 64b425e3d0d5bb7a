/** A candidate of an election, in the background. */

import { AsyncLocalStorage } from "node:async_hooks";
import { setTimeout as sleep } from "node:timers/promises";
import { engine } from "./engine.js";
import { LockLost, Unavailable } from "./errors.js";
import { warn } from "./hooks.js";
import { askForRelease, type Lease } from "./lease.js";

/** Between two terms, and after an outage that was too long. */
const PAUSE_MS = 1000;

/** The leader's work. The signal is that of the lease: aborted when the lead is lost. */
export type Leader = (lease: Lease, signal: AbortSignal) => unknown;

/** The election that the code works for, in a `Leader` and what it calls. */
const current = new AsyncLocalStorage<Election>();

/** Runs for an election until `stop`. */
export class Election {
  /** The election's name. */
  readonly name: string;
  readonly #lead: (signal: AbortSignal) => Promise<Lease>;
  readonly #leader: Leader | undefined;
  readonly #stopped = new AbortController();
  readonly #end: Promise<void>;
  #lease: Lease | undefined;
  #failure: unknown;

  /** @internal */
  constructor(name: string, lead: (signal: AbortSignal) => Promise<Lease>, leader?: Leader) {
    this.name = name;
    this.#lead = lead;
    this.#leader = leader;
    this.#end = this.#run(engine.keepAlive());
  }

  /**
   * Whether this process leads now. It sends no request: the lease's own deadline decides. Send the
   * lease's token with every write as the leader all the same.
   *
   * Throws the error that ended the candidacy, for example `Refused` for an invalid name.
   */
  isLeader(): boolean {
    return this.lease !== undefined;
  }

  /** The lead while this process leads. Throws like `isLeader`. */
  get lease(): Lease | undefined {
    if (this.#failure !== undefined) {
      throw this.#failure;
    }
    return this.#lease?.reason === undefined ? this.#lease : undefined;
  }

  /**
   * Steps down, and ends the candidacy. A `Leader` finds the request in `lease.releaseRequested`,
   * and `stop` waits until it has returned. Called by the leader itself, it does not wait.
   */
  async stop(): Promise<void> {
    this.#stopped.abort();
    if (this.#lease !== undefined) {
      askForRelease(this.#lease, { reason: "stopped" });
    }
    if (current.getStore() !== this) {
      await this.#end;
    }
  }

  /** Stops it at the end of a block: `await using election = leasehold.elect(…)`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  async #run(end: () => void): Promise<void> {
    const { signal } = this.#stopped;
    try {
      while (!signal.aborted) {
        await this.#term(signal);
        // A leader that returns at once must not flood the API server with terms.
        await sleep(PAUSE_MS, undefined, { signal });
      }
    } catch (error) {
      if (!signal.aborted) {
        warn(this.name, `the candidacy ended: ${String(error)}`);
        this.#failure = error;
      }
    } finally {
      end();
    }
  }

  async #term(signal: AbortSignal): Promise<void> {
    let lease: Lease;
    try {
      lease = await this.#lead(signal);
    } catch (error) {
      if (error instanceof Unavailable) {
        warn(this.name, error.message);
        return;
      }
      throw error;
    }
    this.#lease = lease;
    if (signal.aborted) {
      // `stop` came before there was a lease to show it.
      askForRelease(lease, { reason: "stopped" });
    }
    try {
      await (this.#leader === undefined
        ? endOf(lease, signal)
        : current.run(this, this.#leader, lease, lease.signal));
    } catch (error) {
      if (lease.reason === undefined) {
        warn(this.name, `the leader failed: ${String(error)}`);
      }
    }
    await lease.release().catch((error: unknown) => {
      if (!(error instanceof LockLost)) {
        throw error;
      }
    });
    this.#lease = undefined;
  }
}

/** Waits until a lease has ended, or the candidacy ends. */
async function endOf(lease: Lease, stopped: AbortSignal): Promise<void> {
  const signal = AbortSignal.any([lease.signal, stopped]);
  // A release does not abort the signal.
  while (lease.reason === undefined && !stopped.aborted) {
    await sleep(PAUSE_MS, undefined, { signal }).catch(() => {});
  }
}
