// The middleware for Express, without Express: it calls middleware as it is called here.

import assert from "node:assert/strict";
import { createServer, request } from "node:http";
import { test } from "node:test";
import { answerStale, refusal, requireToken } from "leasehold/express";

/**
 * Serves one route between the two, sends a request, and returns the answer.
 * @param {import("node:test").TestContext} t
 * @param {{ method?: string, tokens?: string[], options?: import("leasehold/express").TokenOptions }} call
 * @param {(req: any, res: import("node:http").ServerResponse) => void} route
 */
async function send(t, { method = "PUT", tokens = [], options = {} }, route = () => {}) {
  const filter = requireToken(options);
  const server = createServer((req, res) => {
    /** @param {unknown} error */
    const last = (error) => {
      if (res.headersSent) {
        res.destroy();
      } else {
        res.writeHead(500).end(String(error));
      }
    };
    filter(req, res, () => {
      try {
        route(req, res);
        res.end();
      } catch (error) {
        answerStale(error, req, res, last);
      }
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
  t.after(() => server.close());
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  const headers = tokens.flatMap((token) => ["X-Fencing-Token", token]);
  const sent = request({ port, method, headers: ["Host", "x", ...headers], agent: false });
  sent.end();
  /** @type {import("node:http").IncomingMessage} */
  const response = await new Promise((resolve, reject) => {
    sent.on("response", resolve).on("error", reject);
  });
  let text = "";
  for await (const part of response) {
    text += part;
  }
  const isProblem = response.headers["content-type"] === "application/problem+json";
  return { status: response.statusCode, document: isProblem ? JSON.parse(text) : undefined };
}

/** @param {Awaited<ReturnType<typeof send>>} answer @param {number} status @param {string} code */
function assertAnswered(answer, status, code) {
  const { title, detail, ...rest } = answer.document;
  assert.ok(title);
  assert.deepEqual(rest, { type: `urn:leasehold:problem:${code}`, status, code });
  assert.equal(answer.status, status);
  return detail;
}

test("a write without a token is refused", async (t) => {
  for (const method of ["POST", "PUT", "PATCH", "DELETE", "PURGE"]) {
    assertAnswered(await send(t, { method }, assert.fail), 428, "token_required");
  }
});

const INVALID = [
  ["1", "1"],
  ["5", "6"],
  ...["", "0", "-1", "+1", "01", "1e3", "1.0", "0x10", "1_000", "5 6", "5,6", "abc"].map((v) => [
    v,
  ]),
  ["9007199254740992"],
  ["9".repeat(5000)],
];
for (const tokens of INVALID) {
  test(`tokens are invalid: ${tokens.join(" | ").slice(0, 20)}`, async (t) => {
    assertAnswered(await send(t, { tokens }, assert.fail), 400, "token_invalid");
  });
}

test("spaces in a value are refused, also without a server that removes them", () => {
  for (const value of [" 5", "5 ", "5\n", "٥"]) {
    const res = {
      statusCode: 200,
      headersSent: false,
      removeHeader() {},
      setHeader() {},
      end() {},
    };
    requireToken()({ method: "PUT", headers: { "x-fencing-token": value } }, res, () =>
      assert.fail(),
    );
    assert.equal(res.statusCode, 400);
  }
});

test("the handler sees the token", async (t) => {
  /** @type {unknown[]} */
  const seen = [];
  for (const token of ["1", " 5 ", "9007199254740991"]) {
    await send(t, { tokens: [token] }, (req) => seen.push(req.fencingToken));
  }
  assert.deepEqual(seen, [1, 5, Number.MAX_SAFE_INTEGER]);
});

test("a read needs no token", async (t) => {
  /** @type {unknown[]} */
  const seen = [];
  for (const method of ["GET", "HEAD", "OPTIONS"]) {
    await send(t, { method, tokens: ["not a token"] }, (req) => seen.push(req.fencingToken));
  }
  const options = { unfenced: ["PURGE"] };
  await send(t, { method: "PURGE", options }, (req) => seen.push(req.fencingToken));
  assert.deepEqual(seen, [undefined, undefined, undefined, undefined]);
  const answer = await send(t, { method: "GET", options }, assert.fail);
  assertAnswered(answer, 428, "token_required");
});

const POSTGRESQL = "stale fencing token 5 for report: the newest is 7";
const MARIADB = "CONSTRAINT `stale_fencing_token` failed for `db`.`leasehold_fences`";
const REDIS = "STALETOKEN stale fencing token 5 for {report}:fence: the newest is 7.";

/** @param {string} message @param {object} fields */
const errorWith = (message, fields) => Object.assign(new Error(message), fields);

for (const error of [
  errorWith(POSTGRESQL, { code: "LH001", severity: "ERROR" }),
  errorWith(MARIADB, { code: "ER_CONSTRAINT_FAILED", errno: 4025, sqlState: "23000" }),
  errorWith("stale fencing token", { code: "SQLITE_CONSTRAINT_TRIGGER" }),
  errorWith(REDIS, {}),
]) {
  test(`the refusal of a fence is answered: ${error.message}`, async (t) => {
    const wrapped = new Error(`cannot save: ${error.message}`, { cause: error });
    for (const thrown of [error, wrapped]) {
      const answer = await send(t, { tokens: ["5"] }, (_req, res) => {
        res.setHeader("Content-Length", "1");
        throw thrown;
      });
      const detail = assertAnswered(answer, 412, "stale_token");
      assert.ok(detail.endsWith(`: ${error.message}`), detail);
    }
  });
}

const CIRCULAR = new Error("circular");
CIRCULAR.cause = CIRCULAR;
const duplicate = { code: "23505", severity: "ERROR" };
const DUPLICATE = errorWith("Key (name)=(stale fencing token) already exists.", duplicate);

for (const error of [
  new Error("no connection"),
  errorWith("call leasehold.fence('stale fencing token')", { code: "LH002", severity: "ERROR" }),
  DUPLICATE,
  new Error(DUPLICATE.message, { cause: DUPLICATE }),
  errorWith("CONSTRAINT `amount` failed for `db`.`ledger`", { errno: 4025 }),
  errorWith("Duplicate entry\nsql: INSERT … - parameters:['stale fencing token']", {}),
  CIRCULAR,
  "stale fencing token",
  null,
  undefined,
]) {
  test(`another error is passed on: ${error}`, async (t) => {
    assert.equal(refusal(error), undefined);
    const { status, document } = await send(t, { tokens: ["5"] }, () => {
      throw error;
    });
    assert.deepEqual({ status, document }, { status: 500, document: undefined });
  });
}

test("a response that has started is left alone", async (t) => {
  const answered = send(t, { tokens: ["5"] }, (_req, res) => {
    res.write("some");
    throw errorWith(POSTGRESQL, { code: "LH001" });
  });
  await assert.rejects(answered, { code: "ECONNRESET" });
});
