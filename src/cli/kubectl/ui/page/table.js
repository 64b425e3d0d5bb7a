// The view of all locks: the filter, and the grid.

import { Poll } from "./api.js";
import { count, el, find, fromTemplate, hook, setText } from "./dom.js";
import { Grid } from "./grid.js";

const ANNOUNCE_MS = 500;
const SORTED = /** @type {Record<string, [string, "ascending" | "descending"]>} */ ({
  resource: ["RESOURCE", "ascending"], waiting: ["WAITING", "descending"], held: ["HELD-FOR", "descending"],
});

/** What the view had when the user left it. */
const left = { prefix: "", namespace: "", sort: "resource", top: 0, matched: 0, active: { key: "", index: 0 }, opened: false };

/** @param {HTMLElement} root @param {string} from */
export function mount(root, from) {
  fromTemplate(root, "locks");
  document.title = "Locks – Leasehold";
  const filter = hook("filter", root);
  const namespace = hook("namespace", root);
  const sort = hook("sort", root);
  const grid = new Grid(find("#grid", root), open, () => poll.soon());
  let offset = 0;
  let announce = false;
  let timer = 0;
  restore();

  const poll = new Poll(() => {
    const window = grid.window();
    offset = window.offset;
    const { prefix, namespace, sort } = left;
    return `/api/locks?${new URLSearchParams({ prefix, namespace, sort, offset: String(offset), limit: String(window.limit) })}`;
  }, show);

  function restore() {
    filter.value = left.prefix;
    sort.value = left.sort;
    if (left.namespace) namespace.append(new Option(left.namespace, left.namespace, true, true));
    const returns = from === "lock" && left.opened;
    grid.restore(left, returns);
    if (from && !returns) find("h1", root).focus({ preventScroll: true });
    left.opened = false;
  }

  /** @param {any} answer */
  function show(answer) {
    grid.show(answer, offset);
    grid.sorted(...SORTED[left.sort]);
    options(answer);
    left.matched = answer.matched;
    const locks = count(answer.matched, "lock matches", "locks match");
    const text = answer.matched === answer.total ? count(answer.total, "lock", "locks") : `${locks}, of ${answer.total.toLocaleString("en")}`;
    setText(hook("matched", root), text);
    if (announce) {
      announce = false;
      timer = setTimeout(() => setText(find("#announce", root), locks), ANNOUNCE_MS);
    }
    showEmpty(root, answer);
  }

  /** @param {{namespaces: string[], cluster: {namespace: string | null}}} answer */
  function options({ namespaces, cluster }) {
    find("#namespace-field", root).hidden = cluster.namespace !== null;
    const wanted = ["", ...new Set([...namespaces, ...(left.namespace ? [left.namespace] : [])])];
    const current = [...namespace.options].map((/** @type {HTMLOptionElement} */ option) => option.value);
    if (wanted.join() === current.join()) return;
    namespace.replaceChildren(...wanted.map((name) => el("option", { value: name }, name || "All namespaces")));
    namespace.value = left.namespace;
  }

  function changed() {
    Object.assign(left, { prefix: filter.value, namespace: namespace.value, sort: sort.value });
    clearTimeout(timer);
    announce = true;
    grid.reset();
    poll.refresh();
  }

  /** @param {string} key */
  function open(key) {
    left.opened = true;
    location.hash = `#/lock/${key.split("/").map(encodeURIComponent).join("/")}`;
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    if (event.isComposing) return;
    const typing = event.target === filter;
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) filter.select();
    else if (typing && ["Escape", "ArrowDown", "Enter"].includes(event.key)) grid.focus();
    else return;
    event.preventDefault();
  }

  filter.addEventListener("input", changed);
  namespace.addEventListener("change", changed);
  sort.addEventListener("change", changed);
  find("#clear", root).addEventListener("click", () => {
    filter.value = namespace.value = "";
    changed();
    filter.focus();
  });
  document.addEventListener("keydown", key);
  return {
    stop() {
      Object.assign(left, { top: grid.root.scrollTop, active: grid.active });
      document.removeEventListener("keydown", key);
      clearTimeout(timer);
      poll.stop();
    },
  };
}

/** Says what to do if no lock is shown. @param {HTMLElement} root @param {any} answer */
function showEmpty(root, { matched, total, cluster }) {
  const empty = matched === 0 && cluster.listed;
  find("#empty", root).hidden = !empty;
  find("#clear", root).hidden = total === 0;
  if (!empty) return;
  const scope = cluster.namespace === null ? "in this cluster" : `in namespace ${cluster.namespace}`;
  const none = left.prefix ? `No lock has a resource that begins with “${left.prefix}”` : "No lock exists";
  const where = left.namespace ? ` in namespace ${left.namespace}.` : ".";
  const todo = cluster.namespace === null
    ? "An agent creates a lock when an app first acquires it."
    : "An agent creates a lock when an app first acquires it. To see other namespaces, start kubectl leasehold ui with --namespace NAME or --all-namespaces.";
  setText(find("#empty .lead", root), total === 0 ? `No locks exist ${scope}.` : none + where);
  setText(find("#empty .todo", root), total === 0 ? todo : "Shorten the filter, or clear it.");
}
