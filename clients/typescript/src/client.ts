/** The sidecar that an app talks to. */

import { parseAddress } from "./address.js";
import type { CandidacyRequest, HoldRequest } from "./api.js";
import { Election, type Leader } from "./election.js";
import { engine } from "./engine.js";
import { LockLost } from "./errors.js";
import { publishAcquired } from "./hooks.js";
import { Lease } from "./lease.js";
import type { Address, Wanted } from "./messages.js";

/** The sidecar's own bound for a wait by a connection. */
const LONGEST_WAIT_MS = 7 * 24 * 60 * 60 * 1000;
const DEFAULT_URL = "http://127.0.0.1:7373";

/** What other callers see of a holder, in the HTTP API and in kubectl. */
export interface OwnerOptions {
  /** The holder's name. Default: the pod's name. */
  ownerId?: string | undefined;
  metadata?: Readonly<Record<string, string>> | undefined;
}

export interface LockOptions extends OwnerOptions {
  /**
   * Milliseconds to wait while the lock is held, rounded up to seconds. Default: without a limit.
   * 0 is one try. More than seven days are without a limit.
   */
  wait?: number | undefined;
  /**
   * Absent: the lock is held by a connection, and is free when the process ends. Milliseconds,
   * rounded up to seconds (1 s to a day): it is held by renewals, and is free after that silence.
   * Such a lease survives a restart of the sidecar, and a sidecar has 10,000 instead of 512.
   */
  ttl?: number | undefined;
  /** Ends the waiting: the call rejects with the signal's reason, and nothing stays held. */
  signal?: AbortSignal | undefined;
}

export interface CandidateOptions extends OwnerOptions {
  /** Gets the lead before candidates that are not preferred. */
  preferred?: boolean | undefined;
}

export interface LeadOptions extends CandidateOptions {
  /** Ends the waiting: the call rejects with the signal's reason, and nothing stays held. */
  signal?: AbortSignal | undefined;
}

/** What a lock guards. The signal is that of the lease. */
export type Body<T> = (lease: Lease, signal: AbortSignal) => T | PromiseLike<T>;

/** A sidecar, or `leasehold dev`. All clients of a process share one worker thread. */
export class Client {
  readonly #address: Address;

  /**
   * `url` is `http://HOST:PORT`, or `unix:///PATH`. Default: LEASEHOLD_URL, which an injected pod
   * has, or http://127.0.0.1:7373. Throws a TypeError with what to correct.
   */
  constructor(url?: string) {
    this.#address = parseAddress(url || process.env.LEASEHOLD_URL || DEFAULT_URL);
  }

  /**
   * Runs a function while it holds a lock, and returns its result. The lock is free when the
   * function ends.
   *
   * Rejects with the function's error; with `LockLost` if the lock was lost meanwhile; with
   * `LockHeld` when `wait` is over; with `Unavailable` or `Refused`.
   */
  using<T>(resource: string, body: Body<T>): Promise<T>;
  using<T>(resource: string, options: LockOptions, body: Body<T>): Promise<T>;
  async using<T>(resource: string, ...rest: [Body<T>] | [LockOptions, Body<T>]): Promise<T> {
    const [options, body] = rest.length === 1 ? [{}, rest[0]] : rest;
    if (typeof body !== "function") {
      throw new TypeError("using: the last argument must be the function to run");
    }
    const end = engine.keepAlive();
    try {
      return await runGuarded(await this.lock(resource, options), body);
    } finally {
      end();
    }
  }

  /**
   * Acquires a lock. The caller must release the lease, or declare it with `await using`.
   *
   * Rejects with `LockHeld` when `wait` is over, `Unavailable`, or `Refused`.
   */
  async lock(resource: string, options: LockOptions = {}): Promise<Lease> {
    const { wait, ttl, ownerId, metadata, signal } = options;
    const wanted: Wanted = {
      name: text("resource", resource),
      isLead: false,
      body: plain<HoldRequest>({ resource, ownerId, metadata }),
      ...(wait === undefined || wait > LONGEST_WAIT_MS
        ? {}
        : { wait: Math.max(0, number("wait", wait)) }),
      ...(ttl === undefined ? {} : { ttlSeconds: Math.ceil(number("ttl", ttl) / 1000) }),
    };
    return await this.#acquire(wanted, signal);
  }

  /**
   * Waits until this process leads an election, for one term. The end of the lease steps down.
   *
   * `election` is a DNS label of at most 56 characters.
   */
  async lead(election: string, options: LeadOptions = {}): Promise<Lease> {
    const { preferred, ownerId, metadata, signal } = options;
    const wanted: Wanted = {
      name: text("election", election),
      isLead: true,
      body: plain<CandidacyRequest>({ preferred, ownerId, metadata }),
    };
    return await this.#acquire(wanted, signal);
  }

  /**
   * Runs for an election in the background, term after term, until `stop`. The candidacy keeps the
   * process alive.
   *
   * `leader` is called in each term. It does the leader's work, and must return when its signal is
   * aborted, and soon after `lease.releaseRequested`. When it returns, the process steps down, and
   * is a candidate again. Without it, ask `isLeader()`.
   */
  elect(election: string, leader?: Leader): Election;
  elect(election: string, options: CandidateOptions, leader?: Leader): Election;
  elect(election: string, first?: CandidateOptions | Leader, second?: Leader): Election {
    const [options, leader] = typeof first === "function" ? [{}, first] : [first ?? {}, second];
    const lead = (signal: AbortSignal): Promise<Lease> =>
      this.lead(election, { ...options, signal });
    return new Election(text("election", election), lead, leader);
  }

  async #acquire(wanted: Wanted, signal: AbortSignal | undefined): Promise<Lease> {
    const start = performance.now();
    const make = (granted: ConstructorParameters<typeof Lease>[0]): Lease => new Lease(granted);
    const lease = await engine.acquire(this.#address, wanted, make, signal);
    publishAcquired(lease, performance.now() - start);
    return lease;
  }
}

async function runGuarded<T>(lease: Lease, body: Body<T>): Promise<T> {
  let result: T;
  try {
    result = await body(lease, lease.signal);
  } catch (error) {
    // The body's own error says more than that of the release.
    const lost: unknown = await lease.release().catch((lost: unknown) => lost);
    throw lost instanceof LockLost && isAbort(error, lease.signal) ? lost : error;
  }
  await lease.release();
  return result;
}

/** Whether the body has ended only because its lease was lost. */
function isAbort(error: unknown, { aborted, reason }: AbortSignal): boolean {
  return aborted && error instanceof Error && error.name === "AbortError" && error.cause === reason;
}

function text(name: string, value: unknown): string {
  if (typeof value !== "string") {
    throw new TypeError(`${name} must be a string`);
  }
  return value;
}

function number(name: string, value: unknown): number {
  if (typeof value !== "number" || !Number.isFinite(value)) {
    throw new RangeError(`${name} must be a number of milliseconds`);
  }
  return value;
}

/** Returns what JSON has of an object. */
function plain<T>(value: { [Field in keyof T]: T[Field] | undefined }): T {
  return JSON.parse(JSON.stringify(value)) as T;
}
