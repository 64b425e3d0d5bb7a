// What every view shows around itself: the scope in the header, the banner, and the two messages
// that replace a view.

import { el, find, setText } from "./dom.js";

/** @typedef {import("./api.js").Cluster} Cluster */

let stopped = false;
let problem = "";
/** @type {Cluster | null} */
let cluster = null;

/** @param {Cluster} next */
export function showCluster(next) {
  cluster = next;
  stopped = false;
  setText(find("#scope-user"), next.user);
  setText(find("#scope-server"), next.server);
  setText(find("#scope-namespace"), next.namespace ?? "all");
  setText(find("#scope-now"), clock(next.now));
  const refused = next.state === "refused";
  setText(find("#refused-why"), sentence(next.why));
  find("#refused-all").hidden = next.namespace !== null;
  find("#refused").hidden = !refused;
  find("#view").hidden = refused;
  banner();
}

export function showStopped() {
  stopped = true;
  banner();
}

/** @param {string} next */
export function showProblem(next) {
  problem = next;
  banner();
}

/** Replaces everything, for good. @param {string} why */
export function showEnded(why) {
  setText(find("#ended-why"), sentence(why));
  find("#ended").hidden = false;
  for (const id of ["scope", "banner", "refused", "view"]) find(`#${id}`).remove();
  find("#top nav").remove();
  document.title = "No page – Leasehold";
}

function banner() {
  const texts = [];
  if (stopped) {
    texts.push("The plugin does not answer: kubectl leasehold ui was stopped. " +
      "What you see is the last known state. This page continues to try.");
  } else if (cluster?.state === "away") {
    texts.push(sentence(cluster.why) + " What you see is the last known state.");
  } else if (cluster?.state === "starting") {
    texts.push("Reading the locks from the API server. " + sentence(cluster.why));
  }
  if (problem && !stopped) texts.push(problem);
  const warnings = cluster?.state === "refused" ? [] : (cluster?.warnings ?? []);
  // Only a changed banner is written, because each change is read aloud.
  const place = find("#banner");
  const now = JSON.stringify([texts, warnings]);
  if (place.dataset.now === now) return;
  place.dataset.now = now;
  place.replaceChildren(
    ...texts.map((text) => el("p", { class: "alarm" }, text.trim())),
    ...warnings.map((text) => el("p", {}, text)),
  );
}

/** Returns the words as a sentence. @param {string} words */
const sentence = (words) => (words ? words[0].toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".") : "");

/** Returns the time of day of an RFC 3339 time in UTC. @param {string} time */
export function clock(time) {
  const found = /T(\d\d:\d\d:\d\d)/.exec(time ?? "");
  return found ? `${found[1]} UTC` : "";
}
