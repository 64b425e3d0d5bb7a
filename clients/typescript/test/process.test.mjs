// The worker thread, and the process that it belongs to.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { GRANT, sidecar, stream } from "./sidecar.mjs";

/** @param {string} url @param {string} code @param {string[]} options */
async function run(url, code, ...options) {
  const script = `import * as leasehold from "leasehold"; ${code}`;
  const process_ = promisify(execFile)(
    process.execPath,
    [...options, "--input-type=module", "--eval", script],
    { cwd: import.meta.dirname, env: { ...process.env, LEASEHOLD_URL: url }, timeout: 60_000 },
  );
  return (await process_).stdout.trim();
}

test("a held lease does not keep the process alive", async (t) => {
  const { url, calls } = await sidecar(t, (_call, response) => {
    stream(response, ["acquired", GRANT]);
  });
  const code = 'const lease = await leasehold.lock("report"); console.log(lease.token)';
  assert.equal(await run(url, code), "5");
  await calls[0]?.closed;
});

test("a waiting caller does", async (t) => {
  const { url } = await sidecar(t, (_call, response) => {
    setTimeout(() => stream(response, ["acquired", GRANT]), 500);
  });
  assert.equal(await run(url, 'await leasehold.lock("report"); console.log("held")'), "held");
});

test("import and require give the same package", async () => {
  const code = `
    import { createRequire } from "node:module";
    const required = createRequire(process.cwd() + "/x.js")("leasehold");
    console.log(required.LockLost === leasehold.LockLost);`;
  assert.equal(await run("", code), "true");
});

test("what the app loads into its threads is not for the worker", async (t) => {
  const { url } = await sidecar(t, (_call, response) => stream(response, ["acquired", GRANT]));
  const main = `data:text/javascript,console.log("loaded")`;
  const code = 'await leasehold.lock("report"); console.log("held")';
  assert.equal(await run(url, code, "--import", main), "loaded\nheld");
});

test("leases end with the worker, and the next lock starts another one", async (t) => {
  const { url } = await sidecar(t, (_call, response) => stream(response, ["acquired", GRANT]));
  const code = `
    import threads from "node:worker_threads";
`;
  const body = `
    const workers = [];
    const { Worker } = threads;
    threads.Worker = class extends Worker {
      constructor(...start) { super(...start); workers.push(this); }
    };
    const lease = await leasehold.lock("report");
    await workers[0].terminate();
    await new Promise((resolve) => setTimeout(resolve, 10));
    console.log(lease.reason, lease.signal.aborted);
    (await leasehold.lock("report")).check();
    console.log(workers.length);`;
  assert.equal(await run(url, code + body), "client_failed true\n2");
});
