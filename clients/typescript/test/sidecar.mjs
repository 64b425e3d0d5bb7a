// A server that says what a test wants it to say.

import { createServer } from "node:http";

/** A lease, as `acquired` and acquire's answer have it. */
export const GRANT = {
  resource: "report",
  ownerId: "app",
  leaseId: "lease.0",
  fencingToken: 5,
  validForMs: 60_000,
  renewAfterMs: 20_000,
};

/**
 * @typedef {{ method: string, path: string, body: any, closed: Promise<void> }} Call
 * @typedef {import("node:http").ServerResponse} Response
 */

/**
 * Starts one, which ends with the test.
 * @param {import("node:test").TestContext} t
 * @param {(call: Call, response: Response, number: number) => void} serve
 */
export async function sidecar(t, serve) {
  /** @type {Call[]} */
  const calls = [];
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const part of request) {
      text += part;
    }
    const closed = new Promise((resolve) => response.on("close", () => resolve(undefined)));
    const { method = "", url: path = "" } = request;
    const call = { method, path, body: text === "" ? undefined : JSON.parse(text), closed };
    calls.push(call);
    serve(call, response, calls.length);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  return { url: `http://127.0.0.1:${port}`, calls };
}

/** @param {Response} response @param {number} status @param {object} [document] */
export function answer(response, status, document) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(document === undefined ? undefined : JSON.stringify(document));
}

/** @param {Response} response @param {[string, object][]} events */
export function stream(response, ...events) {
  if (!response.headersSent) {
    response.writeHead(200, { "Content-Type": "text/event-stream" });
  }
  for (const event of events) {
    response.write(eventText(...event));
  }
}

/** @param {string} name @param {object} data */
export function eventText(name, data) {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

/** @param {AbortSignal} signal */
export async function aborted(signal) {
  if (!signal.aborted) {
    // A lease alone does not keep the process alive.
    const alive = setInterval(() => {}, 1000);
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    clearInterval(alive);
  }
}
