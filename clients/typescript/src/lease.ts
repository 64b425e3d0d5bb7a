/** A lease, as the app has it. */

import type { Cell, End } from "./cell.js";
import { engine, type Granted } from "./engine.js";
import { LeaseholdError, LockLost } from "./errors.js";
import { publishEnded, warn } from "./hooks.js";

declare global {
  // For TypeScript without the library esnext.disposable. It is the same declaration.
  interface SymbolConstructor {
    readonly asyncDispose: unique symbol;
  }
}

/** The request to release a lock. Fields can be added. */
export interface ReleaseRequest {
  /** `person_asked`, `agent_stopping`, `max_hold`; `stopped` by `Election.stop`. */
  readonly reason?: string;
  readonly actor?: string;
  readonly message?: string;
  readonly [field: string]: unknown;
}

/** @internal Has a lease show a request to release it. */
export let askForRelease: (lease: Lease, request: ReleaseRequest) => void;

/** The right to act, until `remaining` is zero. */
export class Lease {
  /** What is locked. */
  readonly resource: string;
  /** The lease's id, as the HTTP API and the logs have it. */
  readonly leaseId: string;
  /** The fencing token: larger than every token given before for this resource. */
  readonly token: number;
  /** The name of the holder that others see. */
  readonly ownerId: string;
  /** The keys of work that earlier holders have completed, oldest first. */
  readonly completed: readonly string[];
  readonly #id: number;
  readonly #cell: Cell;
  readonly #controller = new AbortController();
  #releaseRequested: ReleaseRequest | undefined;
  #release: Promise<void> | undefined;

  static {
    askForRelease = (lease, request) => {
      lease.#releaseRequested = request;
    };
  }

  /** @internal */
  constructor({ grant, cell, id }: Granted) {
    this.resource = grant.resource;
    this.leaseId = grant.leaseId;
    this.token = grant.fencingToken;
    this.ownerId = grant.ownerId;
    this.completed = grant.completed;
    this.#id = id;
    this.#cell = cell;
    engine.guard(id, {
      cell,
      lost: () => this.#lost(),
      ask: (request) => askForRelease(this, request),
    });
  }

  /**
   * Aborted when the lease is lost, with the `LockLost` as its reason. A release does not abort it.
   * An event needs a turn of the event loop: in long computations, call `check`.
   */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** The milliseconds for which it is certainly valid if nothing prolongs it. 0 if it has ended. */
  get remaining(): number {
    return this.#cell.remaining();
  }

  /**
   * Why it has ended: `released`, `validity_over`, or a reason of the HTTP API. Undefined while it
   * is valid.
   */
  get reason(): string | undefined {
    return this.#ended()?.reason;
  }

  /** The request to release it, if there is one. Finish the work and release it. */
  get releaseRequested(): ReleaseRequest | undefined {
    return this.#releaseRequested;
  }

  /** The header for requests to what the lock guards. Throws `LockLost` like `check`. */
  get headers(): { "X-Fencing-Token": string } {
    this.check();
    return { "X-Fencing-Token": String(this.token) };
  }

  /**
   * Throws `LockLost` if the lease has ended. Call it before each write, and between the steps of
   * long work. It sends no request, and needs no turn of the event loop.
   */
  check(): void {
    const end = this.#ended();
    if (end !== undefined) {
      throw lockLost(end);
    }
  }

  /**
   * Records under a key that work has succeeded; later holders find it in `completed`. Rejects with
   * `LockLost`, or with `Unavailable` if it is not known whether the key is recorded.
   */
  async complete(key: string): Promise<void> {
    this.check();
    try {
      await engine.call({ do: "complete", lease: this.#id, key });
    } catch (error) {
      if (error instanceof LockLost) {
        // It has the reason.
        this.check();
      }
      throw error;
    }
  }

  /**
   * Releases the lock. The lease is over at once. Rejects with `LockLost` if it was lost before:
   * another holder may have had the lock.
   */
  release(): Promise<void> {
    this.#release ??= this.#releaseOnce();
    return this.#release;
  }

  /** Releases it at the end of a block: `await using lease = await leasehold.lock(…)`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  async #releaseOnce(): Promise<void> {
    const end = this.#cell.release();
    if (end !== undefined) {
      this.#lost();
      throw lockLost(end);
    }
    engine.forget(this.#id);
    try {
      await engine.call({ do: "release", lease: this.#id });
    } catch (error) {
      if (error instanceof LockLost) {
        publishEnded(this, error.code);
        throw error;
      }
      // The work has ended within the validity, and the connection is closed.
      warn(this.resource, `the release is not confirmed: ${describe(error)}`);
    }
    publishEnded(this, "released");
  }

  /** Returns how it has ended, if it has. The first call after a loss aborts the signal. */
  #ended(): End | undefined {
    const end = this.#cell.ended();
    if (end !== undefined && end.isRelease !== true) {
      this.#lost();
    }
    return end;
  }

  #lost(): void {
    const end = this.#cell.ended();
    if (end !== undefined && !this.signal.aborted) {
      engine.forget(this.#id);
      this.#controller.abort(lockLost(end));
      warn(this.resource, `lock lost (token ${this.token}): ${end.detail} (${end.reason})`);
      publishEnded(this, end.reason);
    }
  }
}

function lockLost({ reason, detail }: End): LockLost {
  return new LockLost({ detail, code: reason, document: {} });
}

function describe(error: unknown): string {
  return error instanceof LeaseholdError ? error.message : String(error);
}
