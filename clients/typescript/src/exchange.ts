/** A request to the sidecar and its answer, by node:http. It runs in the worker. */

import * as http from "node:http";
import type { LookupFunction } from "node:net";
import { type Event, EventReader, parseObject } from "./events.js";
import type { Address, Body, Document } from "./messages.js";
import { safely } from "./safely.js";
import type { Timer, Timers } from "./timers.js";

/** A call of the HTTP API. */
export interface Call {
  readonly method: "POST" | "DELETE";
  readonly path: string;
  readonly body?: Body;
  /** The sidecar answers from memory, at once. */
  readonly isQuick?: true;
}

/** A whole answer. `document` is empty if its body is not a JSON object. */
export interface Answer {
  readonly status: number;
  readonly document: Document;
}

/** The maker of a request. One of `answered` and `broke` is called, once and last. */
export interface Handler {
  answered(answer: Answer): void;
  /** The stream brought an event. */
  received?(event: Event): void;
  /** The connection failed or ended, or the time is over. `isOurs`: this end has closed it. */
  broke(why: string, isOurs: boolean): void;
}

/** Connections for further calls. A stream has one of its own. */
const KEPT = new http.Agent({ keepAlive: true, maxFreeSockets: 4 });
/** Few for thousands of renewals: while the sidecar stands still, they must not take all files. */
const SHARED = new http.Agent({ keepAlive: true, maxSockets: 8 });
/** A sidecar that runs notices sooner that its client hangs up. */
const HANG_UP_MS = 1000;
/** No sidecar says more at once. */
const LONGEST_TEXT = 1_000_000;

/** The sidecar listens on both. The system's resolver would wait for the app's file accesses. */
const LOCALHOST = [
  { address: "127.0.0.1", family: 4 },
  { address: "::1", family: 6 },
];
const lookupLocalhost: LookupFunction = (_name, options, callback) => {
  if (options.all === true) {
    callback(null, LOCALHOST);
  } else {
    callback(null, "127.0.0.1", 4);
  }
};

export class Exchange {
  readonly #address: Address;
  readonly #call: Call;
  readonly #version: string;
  readonly #timer: Timer | undefined;
  #handler: Handler | undefined;
  #request: http.ClientRequest | undefined;
  #hasAnswer = false;

  constructor(
    { timers, version }: { timers: Timers; version: string },
    address: Address,
    call: Call,
    handler: Handler,
    until?: number,
  ) {
    this.#address = address;
    this.#call = call;
    this.#version = version;
    this.#handler = handler;
    const shared = call.isQuick ? SHARED : KEPT;
    this.#start(handler.received === undefined ? shared : false);
    if (until !== undefined) {
      this.#timer = timers.at(until, () => this.fail("it did not answer in time"));
    }
  }

  /** Ends it without an answer, and closes its connection. */
  close(): void {
    this.#finish();
    this.#request?.destroy();
    this.#request = undefined;
  }

  /** Ends it without an answer. Calls a function when the sidecar has noticed that. */
  hangUp(done: () => void): void {
    this.#finish();
    const request = this.#request;
    if (!request?.socket) {
      this.close();
      done();
      return;
    }
    const timer = setTimeout(() => request.destroy(), HANG_UP_MS);
    request.once("close", () => {
      clearTimeout(timer);
      safely(done);
    });
    // It closes its end when it has read this.
    request.socket.end();
  }

  /** Ends it with an error. `isOurs`: not because of the peer. */
  fail(why: string, isOurs = false): void {
    const handler = this.#finish();
    this.close();
    safely(() => handler?.broke(`${this.#address.url}: ${why}`, isOurs));
  }

  #start(agent: http.Agent | false): void {
    const { host, port, socketPath } = this.#address;
    const body = this.#call.body === undefined ? "" : JSON.stringify(this.#call.body);
    const request = http.request({
      agent,
      method: this.#call.method,
      path: this.#call.path,
      ...(socketPath === undefined ? { host: host.replace(/^\[|\]$/g, ""), port } : { socketPath }),
      ...(host === "localhost" ? { lookup: lookupLocalhost } : {}),
      headers: {
        Host: socketPath === undefined ? `${host}:${port}` : host,
        "User-Agent": `leasehold-typescript/${this.#version}`,
        Accept: "application/json, text/event-stream",
        "Content-Length": Buffer.byteLength(body),
        ...(body === "" ? {} : { "Content-Type": "application/json" }),
      },
    });
    this.#request = request;
    request.on("response", (response) => this.#read(response));
    request.on("error", (error) => {
      if (request.reusedSocket && !this.#hasAnswer && this.#handler !== undefined) {
        // The sidecar had just closed a kept connection. Each call of the API may be repeated.
        this.#start(false);
      } else if (request === this.#request) {
        this.fail(describe(error), isUnreadable(error));
      }
    });
    request.end(body);
  }

  #read(response: http.IncomingMessage): void {
    this.#hasAnswer = true;
    const status = response.statusCode ?? 0;
    const kind = response.headers["content-type"] ?? "";
    const received = this.#handler?.received?.bind(this.#handler);
    const isStream = received !== undefined && kind.startsWith("text/event-stream");
    const events = new EventReader();
    let text = "";
    response.setEncoding("utf8");
    response.on("data", (chunk: string) => {
      text += isStream ? "" : chunk;
      for (const event of isStream ? events.read(chunk) : []) {
        this.#safely(() => this.#handler && received?.(event));
      }
      if (text.length + events.length > LONGEST_TEXT) {
        this.fail("this is not a sidecar: its answer is too long", true);
      }
    });
    response.on("end", () => {
      if (isStream) {
        this.fail("it ended the stream");
        return;
      }
      const handler = this.#finish();
      this.#request = undefined;
      this.#safely(() => handler?.answered({ status, document: parseObject(text) }), handler);
    });
    response.on("error", (error) => this.fail(describe(error), isUnreadable(error)));
    response.on("close", () => this.fail("it closed the connection"));
  }

  /** Calls the handler; an error in it becomes a failed exchange. */
  #safely(call: () => void, handler?: Handler): void {
    safely(call, (error) => {
      handler?.broke(`${this.#address.url}: an answer cannot be used: ${String(error)}`, true);
      this.fail(`an event cannot be used: ${String(error)}`, true);
    });
  }

  /** Returns the handler once, and nothing after that. */
  #finish(): Handler | undefined {
    const handler = this.#handler;
    this.#handler = undefined;
    this.#timer?.cancel();
    return handler;
  }
}

/** Whether it is an error of the HTTP parser, which closes the connection. */
function isUnreadable(error: Error & { code?: string }): boolean {
  return error.code?.startsWith("HPE_") ?? false;
}

/** A refused connection to `localhost` has an error for each address, and no message. */
function describe(error: Error & { code?: string }): string {
  return error.message || error.code || error.name;
}
