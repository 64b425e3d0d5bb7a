// The plugin's server: requests, and the poll of what a view shows.

const PAUSE_MS = 500;
const RETRY_MS = 1000;
const READ_TIMEOUT_MS = 20_000;
const TOKEN = "token";

/**
 * @typedef {{now: string, user: string, server: string, namespace: string | null,
 *   state: "live" | "away" | "refused" | "starting", listed: boolean, why: string, warnings: string[]}} Cluster
 */

/** What the rest of the page does upon answers. `main.js` sets it. */
export const on = {
  /** An answer had the state of the cluster. */
  cluster: (/** @type {Cluster} */ _) => {},
  /** The plugin does not answer. */
  stopped: () => {},
  /** The token is not valid (any more). */
  ended: (/** @type {string} */ _) => {},
  /** A poll received an error, or none any more (""). */
  problem: (/** @type {string} */ _) => {},
};

/** An error that the server answered. */
export class Refusal extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Returns whether a token is there. */
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** Exchanges the secret of the link for a token. @param {string} secret */
export async function enter(secret) {
  const { token } = await send("/api/enter", { method: "POST", body: JSON.stringify({ secret }) });
  sessionStorage.setItem(TOKEN, token);
}

/** @param {string} path @param {AbortSignal} [signal] */
export function get(path, signal) {
  const signals = [AbortSignal.timeout(READ_TIMEOUT_MS), ...(signal ? [signal] : [])];
  return call(path, { signal: AbortSignal.any(signals), cache: "no-store" });
}

/** @param {string} path @param {object} body */
export const post = (path, body) => call(path, { method: "POST", body: JSON.stringify(body) });

/** @param {string} path @param {RequestInit} init */
async function call(path, init) {
  const token = sessionStorage.getItem(TOKEN) ?? "";
  try {
    const answer = await send(path, { ...init, headers: { Authorization: `Bearer ${token}` } });
    if (answer.cluster) on.cluster(answer.cluster);
    return answer;
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) on.ended(error.message);
    throw error;
  }
}

/** @param {string} path @param {RequestInit} init @returns {Promise<any>} */
async function send(path, init) {
  const headers = { ...init.headers, ...(init.body ? { "Content-Type": "application/json" } : {}) };
  const response = await fetch(path, { ...init, headers });
  if (response.ok) return response.json();
  const body = await response.json().catch(() => ({}));
  throw new Refusal(response.status, body.error ?? `The plugin answered with status ${response.status}.`);
}

/** Asks for one path again and again while the tab is visible, with one request at a time. */
export class Poll {
  /** @type {AbortController | null} */
  #flight = null;
  #timer = 0;
  #again = false;
  #stopped = false;

  /**
   * @param {() => string} path
   * @param {(answer: any) => void} show
   * @param {(error: Refusal) => void} [fail] default: the banner
   */
  constructor(path, show, fail) {
    this.path = path;
    this.show = show;
    this.fail = fail;
    this.seen = () => void (document.hidden || this.refresh());
    document.addEventListener("visibilitychange", this.seen);
    this.refresh();
  }

  /** Asks now; the answer to an earlier request is not shown. */
  refresh() {
    this.#flight?.abort();
    this.#flight = null;
    this.#ask();
  }

  /** Asks as soon as no request is under way, so that a scroll cannot cancel each answer. */
  soon() {
    if (this.#flight) this.#again = true;
    else this.#ask();
  }

  stop() {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#flight?.abort();
    document.removeEventListener("visibilitychange", this.seen);
  }

  async #ask() {
    clearTimeout(this.#timer);
    if (this.#stopped || document.hidden) return;
    const flight = (this.#flight = new AbortController());
    this.#again = false;
    const answer = await get(this.path(), flight.signal).catch((error) => {
      if (!flight.signal.aborted) this.#failed(error);
    });
    if (flight.signal.aborted) return;
    if (answer && !this.fail) on.problem("");
    if (answer && answer.cluster?.state !== "refused") this.show(answer);
    const pause = answer ? PAUSE_MS : RETRY_MS;
    if (this.#flight !== flight) return;
    this.#flight = null;
    if (this.#again) this.#ask();
    else if (!this.#stopped) this.#timer = setTimeout(() => this.#ask(), pause);
  }

  /** @param {unknown} error */
  #failed(error) {
    if (error instanceof Refusal) (this.fail ?? ((e) => on.problem(e.message)))(error);
    else if (error instanceof DOMException && error.name === "TimeoutError") on.problem("The plugin is slow to answer. What you see is the last known state.");
    else on.stopped();
  }
}
