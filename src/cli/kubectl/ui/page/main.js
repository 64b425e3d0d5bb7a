// Enters with the secret of the link, then shows the view that the hash names.

import { Refusal, enter, hasToken, on } from "./api.js";
import { find } from "./dom.js";
import * as hour from "./hour.js";
import * as lock from "./lock.js";
import { showCluster, showEnded, showProblem, showStopped } from "./status.js";
import * as locks from "./table.js";
import * as waits from "./waits.js";

/** @typedef {{stop: () => void}} View */

const SECRET = /^#secret=(.+)$/;
/** The names that Kubernetes allows: no path of a request can have other parts. */
const NAME = /^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$/;
const RETRY_MS = 1000;

/** @type {View | null} */
let view = null;
let ended = false;

Object.assign(on, { cluster: showCluster, stopped: showStopped, problem: showProblem, ended: end });
addEventListener("hashchange", () => {
  if (!SECRET.test(location.hash)) route(document.body.dataset.view ?? "");
  // Before the link is used up by a page that has ended.
  else if (ended) location.reload();
  else start();
});
start();

async function start() {
  const secret = SECRET.exec(location.hash)?.[1];
  if (secret) {
    history.replaceState(null, "", `${location.pathname}#/`);
    if (!(await entered(secret))) return;
  } else if (!hasToken()) {
    end("This tab was opened without the link that kubectl leasehold ui prints.");
    return;
  }
  route("");
}

/** Returns whether the page may continue. @param {string} secret @returns {Promise<boolean>} */
async function entered(secret) {
  for (;;) {
    try {
      await enter(secret);
      return true;
    } catch (error) {
      if (error instanceof Refusal) {
        // The same link, pasted into the tab that it has opened before: its token may be valid.
        if (hasToken()) return true;
        end(error.message);
        return false;
      }
      showStopped();
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }
}

/** @param {string} why */
function end(why) {
  if (ended) return;
  ended = true;
  Object.assign(on, { cluster() {}, stopped() {}, problem() {} });
  view?.stop();
  view = null;
  showEnded(why);
}

/** @param {string} from the view that the user comes from; empty: none */
function route(from) {
  if (ended) return;
  view?.stop();
  showProblem("");
  const [name, mount] = target();
  document.body.dataset.view = name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("data-view") === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
  view = mount(find("#view"), from);
}

/** @returns {[string, (root: HTMLElement, from: string) => View]} */
function target() {
  const [, name, ...rest] = location.hash.split("/");
  if (name === "waits") return [name, waits.mount];
  if (name === "hour") return [name, hour.mount];
  if (name === "lock" && rest.length === 2 && rest.every((part) => NAME.test(part))) {
    return [name, (root, from) => lock.mount(root, from, { namespace: rest[0], name: rest[1] })];
  }
  return ["locks", locks.mount];
}
