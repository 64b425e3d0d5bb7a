// A guarded block by `await using`: TypeScript 5.2 or later, or Node 24.

import * as leasehold from "leasehold";

async function charge(invoices: string[]): Promise<void> {
  await using lease = await leasehold.lock("billing", { wait: 60_000, ttl: 30_000 });
  for (const invoice of invoices) {
    lease.check(); // Throws LockLost.
    console.log("charges", invoice, "with", lease.headers);
  }
}

await charge(["a", "b", "c"]);
