/** What an app may observe, by node:diagnostics_channel. The README documents the channels. */

import { channel } from "node:diagnostics_channel";
import type { Lease } from "./lease.js";

const acquired = channel("leasehold:acquired");
const ended = channel("leasehold:ended");
const warning = channel("leasehold:warning");

/** Publishes that a lease begins, and how many milliseconds the app has waited for it. */
export function publishAcquired(lease: Lease, waited: number): void {
  acquired.publish({ lease, waited });
}

/** Publishes that a lease has been lost or released. */
export function publishEnded(lease: Lease, reason: string): void {
  ended.publish({ lease, reason });
}

/** Publishes a warning. Without a subscriber it is one of the process. */
export function warn(resource: string, message: string): void {
  if (warning.hasSubscribers) {
    warning.publish({ resource, message });
  } else {
    process.emitWarning(`${resource}: ${message}`, "LeaseholdWarning");
  }
}
