// The view of the last hour: the most contended locks, and how long they were held.

import { Poll } from "./api.js";
import { el, find, fromTemplate, keyed, lockHash, setText } from "./dom.js";
import { clock } from "./status.js";

/**
 * @typedef {{namespace: string, name: string, resource: string, grants: number, medianHold: string,
 *   longestHold: string, contended: string, longestQueue: number}} Observed
 */

/** @type {[string, (lock: Observed) => string | number][]} */
const COLUMNS = [
  ["NAMESPACE", (lock) => lock.namespace],
  ["RESOURCE", (lock) => lock.resource],
  ["CONTENDED", (lock) => lock.contended],
  ["LONGEST-QUEUE", (lock) => lock.longestQueue],
  ["GRANTS", (lock) => lock.grants],
  ["MEDIAN-HOLD", (lock) => lock.medianHold],
  ["LONGEST-HOLD", (lock) => lock.longestHold],
];

/** @param {HTMLElement} root @param {string} from */
export function mount(root, from) {
  fromTemplate(root, "hour");
  document.title = "Last hour – Leasehold";
  if (from) find("h1", root).focus({ preventScroll: true });
  const poll = new Poll(() => "/api/hour", ({ since, locks, cluster }) => {
    const columns = COLUMNS.filter(([name]) => name !== "NAMESPACE" || cluster.namespace === null);
    const none = locks.length === 0;
    setText(find("#hour-summary", root), none
      ? `No lock was acquired or waited for since ${clock(since)}. Leave this page open: its plugin observes the locks while it runs.`
      : `Observed by this plugin since ${clock(since)}, the most contended locks first. CONTENDED: for how long pods waited.`);
    find(".wide", root).hidden = none;
    keyed(find("thead tr", root), columns, ([name]) => name, () => el("th", { scope: "col" }), (cell, [name]) => {
      cell.className = align(name);
      setText(cell, name);
    });
    keyed(find("tbody", root), locks, (lock) => `${lock.namespace}/${lock.name}`, () => el("tr"), (row, lock) => fill(row, lock, columns));
  });
  return { stop: () => poll.stop() };
}

/** @param {HTMLElement} row @param {Observed} lock @param {typeof COLUMNS} columns */
function fill(row, lock, columns) {
  keyed(row, columns, ([name]) => name, create, (cell, [name, value]) => {
    cell.className = align(name);
    setText(cell.querySelector("a") ?? cell, value(lock));
    cell.querySelector("a")?.setAttribute("href", lockHash(lock));
  });
}

/** @param {[string, any]} column */
function create([name]) {
  return name === "RESOURCE" ? el("th", { scope: "row" }, el("a")) : el("td");
}

/** @param {string} name */
const align = (name) => (["NAMESPACE", "RESOURCE"].includes(name) ? "" : "number");
