// A leader that works term after term, until its work is done. Ctrl-C steps down.

import { setTimeout as sleep } from "node:timers/promises";
import * as leasehold from "leasehold";

const work = ["first", "second"];

const election = leasehold.elect("billing", async (lease, signal) => {
  // The signal ends the pause when the lead is lost.
  while (!lease.releaseRequested && work.length > 0) {
    console.log("does the", work.shift(), "piece with", lease.headers);
    await sleep(100, undefined, { signal });
  }
  if (work.length === 0) {
    await election.stop();
  }
});

process.once("SIGINT", () => election.stop());
