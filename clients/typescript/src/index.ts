/**
 * Locks for apps on Kubernetes, held by the Leasehold sidecar of the app's pod.
 *
 * ```js
 * import * as leasehold from "leasehold";
 *
 * await leasehold.using("billing", { wait: 60_000 }, async (lease, signal) => {
 *   for (const body of invoices) {
 *     await fetch(url, { method: "POST", body, headers: lease.headers, signal });
 *   }
 * });
 * ```
 *
 * @packageDocumentation
 */

import {
  type Body,
  type CandidateOptions,
  Client,
  type LeadOptions,
  type LockOptions,
} from "./client.js";
import type { Election, Leader } from "./election.js";
import type { Lease } from "./lease.js";

export type { Body, CandidateOptions, LeadOptions, LockOptions, OwnerOptions } from "./client.js";
export { Client } from "./client.js";
export type { Election, Leader } from "./election.js";
export type { Holder } from "./errors.js";
export { LeaseholdError, LockHeld, LockLost, Refused, Unavailable } from "./errors.js";
export type { Lease, ReleaseRequest } from "./lease.js";

/** Set by build.mjs. */
declare const VERSION: string;

/** The version of this package. */
export const version: string = VERSION;

let client: Client | undefined;

function sidecar(): Client {
  client ??= new Client();
  return client;
}

/** {@link Client.using} of the sidecar that LEASEHOLD_URL names. */
export function using<T>(resource: string, body: Body<T>): Promise<T>;
export function using<T>(resource: string, options: LockOptions, body: Body<T>): Promise<T>;
export async function using<T>(
  ...call: [string, Body<T>] | [string, LockOptions, Body<T>]
): Promise<T> {
  return await (call.length === 2 ? sidecar().using(...call) : sidecar().using(...call));
}

/** {@link Client.lock} of the sidecar that LEASEHOLD_URL names. */
export async function lock(resource: string, options?: LockOptions): Promise<Lease> {
  return await sidecar().lock(resource, options);
}

/** {@link Client.lead} of the sidecar that LEASEHOLD_URL names. */
export async function lead(election: string, options?: LeadOptions): Promise<Lease> {
  return await sidecar().lead(election, options);
}

/** {@link Client.elect} of the sidecar that LEASEHOLD_URL names. */
export function elect(election: string, leader?: Leader): Election;
export function elect(election: string, options: CandidateOptions, leader?: Leader): Election;
export function elect(
  election: string,
  first?: CandidateOptions | Leader,
  second?: Leader,
): Election {
  return typeof first === "function"
    ? sidecar().elect(election, first)
    : sidecar().elect(election, first ?? {}, second);
}
