/** The app's side of the worker thread. A process has one, which starts with the first lock. */

import { Worker } from "node:worker_threads";
import { Cell } from "./cell.js";
import { Clock, openUptime } from "./clock.js";
import { errorOf } from "./errors.js";
import { warn } from "./hooks.js";
import type { Address, Document, Failure, FromWorker, Grant, Request, Wanted } from "./messages.js";

/** Set by build.mjs. */
declare const WORKER_SOURCE: string;
declare const VERSION: string;

/** What a lease learns from the worker. */
export interface Guarded {
  readonly cell: Cell;
  /** The cell says that it has ended. */
  lost(): void;
  /** Takes a request to release. */
  ask(request: Document): void;
}

/** A grant, with what the lease needs. */
export interface Granted {
  readonly grant: Grant;
  readonly cell: Cell;
  /** Names the lease in calls to the worker. */
  readonly id: number;
}

type Settled = Extract<FromWorker, { is: "settled" }>;

const ENDED: Failure = {
  kind: "unavailable",
  detail: "the worker thread of leasehold has ended",
  code: "client_failed",
  document: {},
};

class Engine {
  readonly #uptime = openUptime();
  readonly #clock = new Clock(this.#uptime);
  readonly #calls = new Map<number, (settled: Settled) => void>();
  readonly #leases = new Map<number, Guarded>();
  #worker: Worker | undefined;
  #last = 0;
  #keepers = 0;

  /** Acquires a lock. `make` is called as soon as it is granted. */
  async acquire<T>(
    address: Address,
    wanted: Wanted,
    make: (granted: Granted) => T,
    signal?: AbortSignal,
  ): Promise<T> {
    signal?.throwIfAborted();
    const cell = new Cell(this.#clock);
    const request: Request = { do: "acquire", address, wanted, cell: cell.buffer };
    const result = await new Promise<{ made: T } | Failure | undefined>((resolve) => {
      const leave = (): void => {
        this.#send({ do: "leave", lease: id }, () => {});
        resolve(undefined);
      };
      const id = this.#send(request, ({ grant, failure }) => {
        signal?.removeEventListener("abort", leave);
        // One that comes too late is not made: the worker releases it.
        const isWanted = grant !== undefined && signal?.aborted !== true;
        resolve(isWanted ? { made: make({ grant, cell, id }) } : failure);
      });
      signal?.addEventListener("abort", leave, { once: true });
    });
    if (result === undefined) {
      throw signal?.reason;
    }
    if ("kind" in result) {
      throw errorOf(result);
    }
    return result.made;
  }

  /** Has the worker do something with a lease. */
  async call(request: Request): Promise<void> {
    const { failure } = await new Promise<Settled>((resolve) => this.#send(request, resolve));
    // Here, and not where the answer arrives: its stack has the caller.
    if (failure !== undefined) {
      throw errorOf(failure);
    }
  }

  /** Tells a lease what happens to it, until `forget`. */
  guard(id: number, lease: Guarded): void {
    this.#leases.set(id, lease);
  }

  /** The lease has ended. */
  forget(id: number): void {
    this.#leases.delete(id);
  }

  /** Keeps the process alive, until the returned function is called. */
  keepAlive(): () => void {
    this.#keepers += 1;
    this.#hold();
    return () => {
      this.#keepers -= 1;
      this.#hold();
    };
  }

  #send(request: Request, settled: (settled: Settled) => void): number {
    this.#last += 1;
    const call = this.#last;
    this.#running().postMessage({ ...request, call });
    this.#calls.set(call, settled);
    this.#hold();
    return call;
  }

  #running(): Worker {
    if (this.#worker === undefined) {
      const worker = new Worker(WORKER_SOURCE, {
        eval: true,
        name: "leasehold",
        // What the app loads into each of its threads is not for this one.
        env: {},
        execArgv: [],
        workerData: { uptime: this.#uptime, version: VERSION },
      });
      let why = "";
      worker.on("message", (message: FromWorker) => this.#receive(message));
      worker.on("error", (error) => {
        why = `: ${String(error)}`;
      });
      worker.on("exit", () => this.#ended(why));
      this.#worker = worker;
    }
    return this.#worker;
  }

  #receive(message: FromWorker): void {
    if (message.is === "settled") {
      const settled = this.#calls.get(message.call);
      this.#calls.delete(message.call);
      settled?.(message);
      this.#hold();
    } else if (message.is === "lost") {
      this.#leases.get(message.lease)?.lost();
    } else if (message.is === "asked") {
      this.#leases.get(message.lease)?.ask(message.request);
    } else {
      warn(message.resource, message.message);
    }
  }

  /** A held lease alone does not keep the process alive; a pending call does. */
  #hold(): void {
    if (this.#calls.size + this.#keepers > 0) {
      this.#worker?.ref();
    } else {
      this.#worker?.unref();
    }
  }

  /** The connections have ended with the thread. The next lock starts another one. */
  #ended(why: string): void {
    this.#worker = undefined;
    const failure = { ...ENDED, detail: ENDED.detail + why };
    const calls = [...this.#calls];
    const leases = [...this.#leases.values()];
    this.#calls.clear();
    for (const lease of leases) {
      lease.cell.lose(failure.code, failure.detail);
      lease.lost();
    }
    for (const [call, settled] of calls) {
      settled({ is: "settled", call, failure });
    }
    this.#hold();
  }
}

/** The only one. */
export const engine = new Engine();
