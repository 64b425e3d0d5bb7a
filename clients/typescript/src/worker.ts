/**
 * The worker thread: all sockets and timers of all leases of a process. The app's thread may be
 * busy for longer than a lease is valid.
 */

import { type MessagePort, parentPort, workerData } from "node:worker_threads";
import type { Acquisition } from "./acquisition.js";
import { ByConnection } from "./by_connection.js";
import { ByRenewal } from "./by_renewal.js";
import { Cell } from "./cell.js";
import { Clock } from "./clock.js";
import { failureOf } from "./errors.js";
import type { Failure, FromWorker, ToWorker, WorkerData } from "./messages.js";
import { safely } from "./safely.js";
import { Timers } from "./timers.js";

/** What the leases share. */
export interface Context {
  readonly clock: Clock;
  readonly timers: Timers;
  readonly version: string;
  post(message: FromWorker): void;
  /** The lease has ended. */
  forget(lease: number): void;
}

function run(port: MessagePort, { uptime, version }: WorkerData): void {
  const clock = new Clock(uptime);
  const acquisitions = new Map<number, Acquisition>();
  const cells = new Map<number, Cell>();
  const context: Context = {
    clock,
    timers: new Timers(clock),
    version,
    post: (message) => port.postMessage(message),
    forget: (lease) => {
      acquisitions.delete(lease);
      cells.delete(lease);
    },
  };

  const receive = (message: ToWorker): void => {
    const settle = (failure?: Failure): void => {
      context.post({ is: "settled", call: message.call, ...(failure ? { failure } : {}) });
    };
    if (message.do === "acquire") {
      const { call, address, wanted } = message;
      const cell = new Cell(clock, message.cell);
      const Way = wanted.ttlSeconds === undefined ? ByConnection : ByRenewal;
      const acquisition = new Way({ context, lease: call, address, wanted, cell });
      acquisitions.set(call, acquisition);
      cells.set(call, cell);
      acquisition.begin();
      return;
    }
    const acquisition = acquisitions.get(message.lease);
    if (acquisition === undefined) {
      // Its lease has ended, and the app's thread knows why.
      settle(message.do === "complete" ? failureOf(404, { code: "lease_unknown" }) : undefined);
    } else if (message.do === "complete") {
      acquisition.complete(message.key, settle);
    } else if (message.do === "release") {
      acquisition.release(settle);
    } else {
      acquisition.leave(settle);
    }
  };

  port.on("message", (message: ToWorker) => safely(() => receive(message)));
  // The connections close with the thread, and the sidecar releases what they hold.
  process.on("exit", () => {
    for (const cell of cells.values()) {
      cell.lose("client_failed", "the worker thread of leasehold has ended");
    }
  });
}

if (parentPort !== null) {
  run(parentPort, workerData as WorkerData);
}
