// The view of which pods wait for which: a list, and the same as a picture.

import { Poll } from "./api.js";
import { count, el, find, fromTemplate, hook, keyed, lockHash, ordinal, setText } from "./dom.js";
import { draw } from "./graph.js";

/** @typedef {{id: string, namespace: string, pod: string, state: string}} Pod */
/** @typedef {{from: string, to: string, namespace: string, name: string, resource: string, position: number, deadlock: boolean}} Wait */

/** @param {HTMLElement} root @param {string} from */
export function mount(root, from) {
  fromTemplate(root, "waits");
  document.title = "Waits – Leasehold";
  if (from) find("h1", root).focus({ preventScroll: true });
  let drawn = "";
  const poll = new Poll(() => "/api/waits", ({ pods, waits, cut, cluster }) => {
    if (!cluster.listed) return;
    summary(root, pods, waits, cut);
    list(root, pods, waits, cluster.namespace === null);
    // A picture that has not changed keeps its scroll position and tooltips.
    const now = JSON.stringify([pods, waits]);
    if (now !== drawn) draw(hook("graph", root), pods, waits, cluster.namespace === null);
    drawn = now;
  });
  return { stop: () => poll.stop() };
}

/** @param {HTMLElement} root @param {Pod[]} pods @param {Wait[]} waits @param {boolean} cut */
function summary(root, pods, waits, cut) {
  const none = waits.length === 0;
  const more = cut ? " There are more: only these are shown." : "";
  const edges = count(waits.length, "wait", "waits");
  setText(find("#waits-summary", root), none ? "No pod waits." : `${edges} among ${count(pods.length, "pod", "pods")}.${more}`);
  find("#waits-deadlocks", root).hidden = !waits.some((wait) => wait.deadlock);
  find(".split", root).hidden = none;
}

/** @param {HTMLElement} root @param {Pod[]} pods @param {Wait[]} waits @param {boolean} namespaces */
function list(root, pods, waits, namespaces) {
  const byId = new Map(pods.map((pod) => [pod.id, pod]));
  const name = (/** @type {string} */ id) => {
    const pod = byId.get(id);
    if (!pod) return id;
    const state = pod.state === "live" ? "" : ` (session ${pod.state})`;
    return `${namespaces ? `${pod.namespace}/` : ""}${pod.pod}${state}`;
  };
  const sorted = [...waits].sort((a, b) => Number(b.deadlock) - Number(a.deadlock));
  keyed(find(".waits", root), sorted, (wait) => [wait.from, wait.to, wait.namespace, wait.name].join(" "), create, (item, wait) => {
    const [from, link, to, position, mark] = /** @type {any} */ (item.children);
    setText(from, name(wait.from));
    setText(link, wait.resource);
    link.href = lockHash(wait);
    setText(to, name(wait.to));
    setText(position, `, ${ordinal(wait.position)} in the queue`);
    mark.hidden = !wait.deadlock;
    item.classList.toggle("deadlock", wait.deadlock);
  });
}

function create() {
  const item = el("li", { "data-testid": "wait" });
  const mark = el("strong", { class: "alarm" }, "Possible deadlock");
  item.append(el("b"), " waits for ", el("a"), ", held by ", el("b"), el("span", { class: "position" }), " ", mark);
  return item;
}

