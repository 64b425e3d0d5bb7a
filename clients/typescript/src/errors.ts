/** What can go wrong. `code` is the code of the HTTP API, if the sidecar answered. */

import { outcomeOf } from "./api.js";
import type { Document, Failure } from "./messages.js";

/** An error of Leasehold: what failed, and what to do. */
export class LeaseholdError extends Error {
  /** What failed, and what to do. */
  readonly detail: string;
  /** Stable, and meant for programs: docs/http-api.md has a table. */
  readonly code: string;
  /** The whole problem document of the sidecar; empty if it did not answer. */
  readonly document: Readonly<Record<string, unknown>>;

  /** @internal */
  constructor({ detail, code, document }: Omit<Failure, "kind">) {
    super(`${detail} (${code})`);
    this.detail = detail;
    this.code = code;
    this.document = document;
  }
}

/** The holder of a lock, as other callers see it. Fields can be added. */
export interface Holder {
  readonly ownerId: string;
  readonly pod?: string;
  readonly fencingToken?: number;
  /** RFC 3339. */
  readonly heldSince?: string;
  readonly metadata?: Readonly<Record<string, string>>;
  readonly [field: string]: unknown;
}

/** Another caller has the lock, and `wait` is over. */
export class LockHeld extends LeaseholdError {
  /** The holder, if it is known. */
  get holder(): Holder | undefined {
    const { holder } = this.document as { holder?: Holder | null };
    return holder ?? undefined;
  }
}

/**
 * The lease is over: stop what the lock guards. Another holder may already have the lock. `code` is
 * the reason.
 */
export class LockLost extends LeaseholdError {}

/** The sidecar, or the API server behind it, did not answer in time. Nothing is held. */
export class Unavailable extends LeaseholdError {}

/** The sidecar refused the request; `detail` says what to correct. */
export class Refused extends LeaseholdError {}

// The stack of an error begins with the name, and a bundler may rename the classes.
for (const [name, { prototype }] of Object.entries({
  LeaseholdError,
  LockHeld,
  LockLost,
  Unavailable,
  Refused,
})) {
  Object.defineProperty(prototype, "name", { value: name });
}

const CLASSES = { held: LockHeld, lost: LockLost, unavailable: Unavailable, refused: Refused };

/** Returns the error of a failure. */
export function errorOf(failure: Failure): LeaseholdError {
  return new CLASSES[failure.kind](failure);
}

/** Returns the failure that an answer describes. */
export function failureOf(status: number, document: Document): Failure {
  const text = (field: string): string | undefined => {
    const value = document[field];
    return typeof value === "string" ? value : undefined;
  };
  const code = text("code") ?? `http_${status}`;
  const detail = text("detail") ?? `the answer has the status ${status}, and is not a sidecar's`;
  const outcome = outcomeOf(code, status);
  const isUnavailable = outcome === "passing" || outcome === "lasting";
  return {
    kind: isUnavailable ? "unavailable" : outcome,
    detail,
    code: outcome === "lost" ? (text("reason") ?? code) : code,
    document,
  };
}

/** Whether the same call may succeed soon. */
export function passes({ kind, code }: Failure): boolean {
  return kind === "unavailable" && outcomeOf(code, 503) !== "lasting";
}

/** Returns the failure of a call that has no answer. */
export function noAnswer(detail: string): Failure {
  return { kind: "unavailable", detail, code: "no_answer", document: {} };
}
