// The view of one lock: what is known about it, and the two requests to release it.

import { Poll } from "./api.js";
import { el, find, fromTemplate, hook, keyed, lines, setText } from "./dom.js";
import { follow, openDialog } from "./release.js";

/** @typedef {{leaseId: string, allowed: boolean, missing: string, ask: string, force: string}} Release */
/** @typedef {{namespace: string, name: string}} Id */

/** @param {HTMLElement} root @param {string} from @param {Id} id */
export function mount(root, from, id) {
  fromTemplate(root, "lock");
  const path = `/api/locks/${id.namespace}/${id.name}`;
  const following = follow(path, hook("outcome", root));
  /** @type {any} */
  let lock = null;
  /** @type {ReturnType<typeof openDialog> | null} */
  let dialog = null;
  title(root, id.name, id);
  if (from) hook("lock-heading", root).focus({ preventScroll: true });

  const poll = new Poll(() => path, (answer) => {
    lock = answer;
    title(root, lock.resource, id);
    setText(find(".gone", root), "");
    find(".lock", root).hidden = false;
    facts(root, lock.facts ?? []);
    sections(root, lock.sections ?? []);
    find("#why", root).hidden = !lock.why?.length;
    lines(find("#why .lines", root), lock.why ?? []);
    actions(root, lock);
    dialog?.update(lock.release);
  }, (error) => {
    setText(find(".gone", root), error.message);
    if (error.status !== 404) return;
    find(".lock", root).hidden = true;
    dialog?.update(null);
  });

  for (const mode of /** @type {const} */ (["Ask", "Force"])) {
    hook(mode.toLowerCase(), root).addEventListener("click", () => {
      if (!lock?.release?.allowed) return;
      dialog = openDialog(root, { path, mode, lock, release: lock.release }, following);
    });
  }
  /** @param {KeyboardEvent} event */
  function key(event) {
    if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    location.hash = "#/";
  }
  document.addEventListener("keydown", key);
  return {
    stop() {
      document.removeEventListener("keydown", key);
      following.stop();
      poll.stop();
    },
  };
}

/** @param {HTMLElement} root @param {string} resource @param {Id} id */
function title(root, resource, id) {
  setText(hook("lock-heading", root), resource);
  setText(find(".object", root), `Lock object ${id.name} in namespace ${id.namespace}`);
  const words = `${hook("lock-heading", root).textContent} – Leasehold`;
  if (document.title !== words) document.title = words;
}

/** @param {HTMLElement} root @param {{name: string, value: string}[]} items */
function facts(root, items) {
  keyed(find(".facts", root), items, (_, index) => String(index), () => el("div", {}, el("dt"), el("dd")), (element, { name, value }) => {
    setText(element.children[0], name);
    setText(element.children[1], value);
  });
}

/** @param {HTMLElement} root @param {{name: string, lines: string[]}[]} items */
function sections(root, items) {
  // The sections follow the two cards of the template, which keyed() must not touch.
  const cards = find(".cards", root);
  const rest = cards.querySelector(".rest") ?? cards.appendChild(el("div", { class: "rest" }));
  keyed(rest, items, ({ name }) => name, () => el("section", { class: "card" }, el("h2"), el("div", { class: "lines" })), (element, item) => {
    setText(element.children[0], item.name);
    lines(element.children[1], item.lines.length ? item.lines : ["none"]);
  });
}

/** Buttons that cannot be used stay in the order of focus, and say why. @param {HTMLElement} root @param {{release: Release | null, held?: boolean}} lock */
function actions(root, { release, held }) {
  const missing = find("#missing-right", root);
  const free = find("#lock-free", root);
  missing.hidden = !release || release.allowed;
  free.hidden = release !== null;
  setText(missing, release?.missing);
  setText(free, held === false ? "The lock is free: no grant can be released." : "The lock cannot be read: its grant cannot be released here.");
  for (const button of [hook("ask", root), hook("force", root)]) {
    const off = !release?.allowed;
    if (off) button.setAttribute("aria-disabled", "true");
    else button.removeAttribute("aria-disabled");
    if (off) button.setAttribute("aria-describedby", release ? missing.id : free.id);
    else button.removeAttribute("aria-describedby");
  }
}
