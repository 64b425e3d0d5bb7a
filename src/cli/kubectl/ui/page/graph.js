// The picture of which pods wait for which. Waiters are right of the pods that they wait for. Each pod is a
// box with one line for each lock that it waits for, and from that line an edge goes to the holder.

import { count, ordinal } from "./dom.js";

/** @typedef {import("./waits.js").Pod} Pod */
/** @typedef {import("./waits.js").Wait} Wait */
/** @typedef {{pod: Pod, out: Wait[], layer: number, x: number, y: number, height: number}} Node */

const BOX = 200;
const LABEL = 150;
const CURVE = 50;
const TITLE = 40;
const LINE = 22;
const SPACE = 14;
const EDGE = 12;

/** @param {HTMLElement} root @param {Pod[]} pods @param {Wait[]} waits @param {boolean} namespaces */
export function draw(root, pods, waits, namespaces) {
  const nodes = layout(pods, waits);
  const all = [...nodes.values()];
  const width = Math.max(...all.map((node) => node.x + BOX), 0) + EDGE;
  const height = Math.max(...all.map((node) => node.y + node.height), 0) + EDGE;
  const label = `${count(waits.length, "wait", "waits")} among ${count(pods.length, "pod", "pods")}. The list has the same content.`;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const edges = all.flatMap((node) => node.out.map((wait, at) => edge(node, at, wait, /** @type {Node} */ (nodes.get(wait.to)))));
  picture.append(...edges, ...all.map((node) => box(node, namespaces)));
  root.replaceChildren(picture);
}

/** @param {Pod[]} pods @param {Wait[]} waits */
function layout(pods, waits) {
  /** @type {Map<string, Node>} */
  const nodes = new Map(pods.map((pod) => [pod.id, { pod, out: [], layer: -1, x: 0, y: 0, height: TITLE }]));
  for (const wait of waits) if (nodes.has(wait.to)) nodes.get(wait.from)?.out.push(wait);
  for (const node of nodes.values()) rank(node, nodes, new Set());
  const target = (/** @type {Wait} */ wait) => /** @type {Node} */ (nodes.get(wait.to));
  // Edges that close a cycle begin at the left of a gap, where they have labels of their own.
  const closes = [...nodes.values()].some((node) => node.out.some((wait) => target(wait).layer > node.layer));
  const gap = closes ? 2 * LABEL + CURVE : LABEL + CURVE;
  /** The boxes that are drawn beside a box: of each waiter, the pod that it waits for first. @type {Map<Node, Node[]>} */
  const beside = new Map([...nodes.values()].map((node) => [node, []]));
  for (const node of nodes.values()) {
    const holder = node.out.map(target).find((other) => other.layer < node.layer);
    if (holder) beside.get(holder)?.push(node);
    node.x = EDGE + node.layer * (BOX + gap);
    node.height = TITLE + node.out.length * LINE;
  }
  const waiting = new Set([...beside.values()].flat());
  let top = EDGE;
  const alarming = (/** @type {Node} */ node) => Number(node.out.some((wait) => wait.deadlock));
  const first = [...nodes.values()].sort((a, b) => alarming(b) - alarming(a));
  for (const node of first) if (!waiting.has(node)) top = stack(node, top, beside);
  return nodes;
}

/**
 * Sets the layer: 0 for a pod that does not wait, else one more than its holders'. A wait that closes
 * a cycle does not count.
 * @param {Node} node @param {Map<string, Node>} nodes @param {Set<Node>} open
 * @returns {number}
 */
function rank(node, nodes, open) {
  if (open.has(node)) return -1;
  if (node.layer >= 0) return node.layer;
  open.add(node);
  const layers = node.out.map((wait) => rank(/** @type {Node} */ (nodes.get(wait.to)), nodes, open));
  open.delete(node);
  node.layer = Math.max(-1, ...layers) + 1;
  return node.layer;
}

/** Places a box and those beside it below `top`; returns where the next can begin. @param {Node} node @param {number} top @param {Map<Node, Node[]>} beside @returns {number} */
function stack(node, top, beside) {
  node.y = top;
  let below = top;
  for (const waiter of beside.get(node) ?? []) below = stack(waiter, below, beside);
  return Math.max(below, top + node.height + SPACE);
}

/** @param {Node} from @param {number} at @param {Wait} wait @param {Node} to */
function edge(from, at, wait, to) {
  const left = to.layer < from.layer;
  const side = left ? -1 : 1;
  const x1 = left ? from.x : from.x + BOX;
  const y1 = from.y + TITLE + at * LINE + LINE / 2;
  const bend = x1 + side * LABEL;
  // An edge to the pod itself returns to the side that it left.
  const end = to === from ? -1 : side;
  const x2 = end < 0 ? to.x + BOX : to.x;
  const y2 = to.y + TITLE / 2;
  // Between neighbouring layers the curve is where no label is; a longer edge goes straight to its end.
  const near = Math.abs(to.layer - from.layer) === 1;
  const half = bend + side * CURVE / 2;
  const into = near ? `${half} ${y2} ${bend + side * CURVE} ${y2} H${x2 - end * 7}` : `${x2 - end * CURVE} ${y2} ${x2 - end * 7} ${y2}`;
  const path = `M${x1} ${y1} H${bend} C${half} ${y1} ${into}`;
  const group = svg("g", { class: wait.deadlock ? "edge deadlock" : "edge" });
  group.append(
    svg("path", { d: path }),
    svg("path", { class: "tip", d: `M${x2} ${y2} l${-end * 9} -5 v10 z` }),
    text(left ? x1 - LABEL : x1 + 4, y1 - 18, LABEL - 4, `${wait.deadlock ? "⚠ " : ""}${wait.resource}`),
    title(`${wait.deadlock ? "Possible deadlock: " : ""}${wait.resource}, ${ordinal(wait.position)} in the queue`),
  );
  return group;
}

/** @param {Node} node @param {boolean} namespaces */
function box(node, namespaces) {
  const { pod, out, x, y, height } = node;
  const live = pod.state === "live";
  const group = svg("g", { class: live ? "pod" : "pod over" });
  const state = `${live ? "" : "▲ "}session ${pod.state}`;
  group.append(
    svg("rect", { x, y, width: BOX, height, rx: 4 }),
    text(x + 8, y + 4, BOX - 16, pod.pod, "name"),
    text(x + 8, y + 20, BOX - 16, namespaces ? `${state}, ${pod.namespace}` : state, "state"),
    title(`${pod.namespace}/${pod.pod}, ${state}`),
  );
  out.forEach((wait, at) => {
    group.append(text(x + 8, y + TITLE + at * LINE + 2, BOX - 16, `waits, ${ordinal(wait.position)} in the queue`, "state"));
  });
  return group;
}

/** Returns a text that is cut at its width: an inner `svg` clips. @param {number} x @param {number} y @param {number} width @param {string} words @param {string} [style] */
function text(x, y, width, words, style = "") {
  const frame = svg("svg", { x, y, width, height: 18 });
  const inner = svg("text", { x: 0, y: 13, class: style });
  inner.textContent = words;
  frame.append(inner);
  return frame;
}

/** @param {string} words */
function title(words) {
  const element = svg("title", {});
  element.textContent = words;
  return element;
}

/** @param {string} tag @param {Record<string, string | number>} attributes */
function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}
