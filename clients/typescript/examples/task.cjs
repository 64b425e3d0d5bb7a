// A task that one process runs at a time. Others do not wait for it, and skip it.

const leasehold = require("leasehold");

async function report() {
  try {
    await leasehold.using("nightly-report", { wait: 0 }, async (lease) => {
      console.log("reports with", lease.headers);
    });
  } catch (error) {
    if (!(error instanceof leasehold.LockHeld)) {
      throw error;
    }
    console.log("skipped:", error.holder?.ownerId, "does it");
  }
}

report();
