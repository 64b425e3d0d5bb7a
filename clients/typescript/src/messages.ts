/** What the app's thread and the worker thread send to each other. All of it can be cloned. */

import type { AcquireRequest, CandidacyRequest, CompleteRequest, HoldRequest } from "./api.js";

/** A JSON object. */
export type Document = Record<string, unknown>;

/** The fields of an answer, with values that are not checked yet. */
export type Unchecked<T> = { readonly [Field in keyof T]?: unknown };

/** What a call sends. */
export type Body = AcquireRequest | CandidacyRequest | CompleteRequest | HoldRequest;

/** Why a call failed; `errors.ts` makes an error of it. */
export interface Failure {
  readonly kind: "held" | "lost" | "unavailable" | "refused";
  readonly detail: string;
  readonly code: string;
  readonly document: Document;
}

/** Where the sidecar listens. */
export interface Address {
  readonly host: string;
  readonly port: number;
  /** Instead of host and port. */
  readonly socketPath?: string;
  /** As a person wrote it. */
  readonly url: string;
}

/** What to acquire. */
export interface Wanted {
  /** The resource, or the name of the election. */
  readonly name: string;
  readonly isLead: boolean;
  /** The fields that both ways to hold a lock send. */
  readonly body: HoldRequest | CandidacyRequest;
  /** Milliseconds; absent: without a limit. */
  readonly wait?: number;
  /** Absent: held by a connection. */
  readonly ttlSeconds?: number;
}

/** A grant, with what `acquired` and acquire's answer have. */
export interface Grant {
  readonly resource: string;
  readonly leaseId: string;
  readonly fencingToken: number;
  readonly ownerId: string;
  readonly validForMs: number;
  readonly renewAfterMs: number;
  readonly completed: readonly string[];
}

/** A request to the worker. Each has one answer, `settled`. */
export type Request =
  | { do: "acquire"; address: Address; wanted: Wanted; cell: SharedArrayBuffer }
  | { do: "leave"; lease: number }
  | { do: "release"; lease: number }
  | { do: "complete"; lease: number; key: string };

/** To the worker. The `call` of an acquire names its lease in later requests. */
export type ToWorker = Request & { call: number };

/** From the worker. */
export type FromWorker =
  | { is: "settled"; call: number; grant?: Grant; failure?: Failure }
  | { is: "lost"; lease: number }
  | { is: "asked"; lease: number; request: Document }
  | { is: "warning"; resource: string; message: string };

/** What the worker begins with. */
export interface WorkerData {
  /** The open /proc/uptime, if the system has it. */
  readonly uptime: number | undefined;
  readonly version: string;
}
