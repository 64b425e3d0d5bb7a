// A guarded block: the work stops when the lock is lost.

import * as leasehold from "leasehold";

await leasehold.using("billing", { wait: 60_000 }, async (lease) => {
  for (const invoice of ["a", "b", "c"]) {
    lease.check(); // Throws LockLost.
    console.log("charges", invoice, "with", lease.headers);
  }
});
