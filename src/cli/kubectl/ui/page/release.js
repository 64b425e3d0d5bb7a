// The dialog that requests a release, and the outcome of the request.

import { Poll, Refusal, post } from "./api.js";
import { find, hook, lines, setText } from "./dom.js";

/** The requests of this tab whose outcome the user may come back for: the path of the lock, and the grant. @type {Map<string, string>} */
const requested = new Map();

/** Follows the last request of this tab for a lock. @param {string} path @param {HTMLElement} place */
export function follow(path, place) {
  /** @type {Poll | null} */
  let poll = null;
  const show = (/** @type {string} */ text) => lines(place, text.replace(/\n+$/, "").split("\n"));
  let stopped = false;
  const start = () => {
    poll?.stop();
    if (stopped) return;
    const leaseId = requested.get(path);
    if (!leaseId) return;
    poll = new Poll(() => `${path}/release/${encodeURIComponent(leaseId)}`, ({ text }) => {
      if (typeof text !== "string") return;
      show(text);
      requested.delete(path);
      poll?.stop();
    }, (error) => show(error.message));
  };
  if (requested.has(path)) show("A release was requested. Its result is shown here.");
  start();
  return {
    show,
    stop() {
      stopped = true;
      poll?.stop();
    },
    /** @param {string} leaseId @param {string} note what follows */
    begin(leaseId, note) {
      requested.set(path, leaseId);
      show(note);
      start();
    },
  };
}

/**
 * Opens the dialog.
 * @param {HTMLElement} root
 * @param {{path: string, mode: "Ask" | "Force", lock: any, release: import("./lock.js").Release}} request
 * @param {ReturnType<typeof follow>} following
 */
export function openDialog(root, { path, mode, lock, release }, following) {
  root.append(find("#dialog-template").content.cloneNode(true));
  const dialog = hook("dialog", root);
  const form = find("form", dialog);
  const reason = hook("reason", dialog);
  const typed = hook("confirm-name", dialog);
  const submit = hook("submit", dialog);
  const failure = hook("dialog-error", dialog);
  const force = mode === "Force";
  let sending = false;

  setText(find("#dialog-title", dialog), `${force ? "Force the release of" : "Ask for the release of"} ${lock.resource}`);
  const action = force ? "Force release" : "Ask for release";
  setText(submit, action);
  submit.className = force ? "danger solid" : "solid";
  lines(find(".preview", dialog), (force ? release.force : release.ask).trimEnd().split("\n"));
  find("#confirm-field", dialog).hidden = !force;
  setText(find("#confirm-what", dialog), lock.name);

  function valid() {
    const blank = reason.value.trim() === "";
    const names = [lock.name, lock.resource];
    const other = force && ![typed.value, typed.value.trim()].some((text) => names.includes(text));
    mark(reason, find("#reason-error", dialog), blank ? "Give a reason: it is recorded, and cannot be blank." : "");
    mark(typed, find("#confirm-error", dialog), other ? `This is not the name. Type ${lock.name}, or the resource.` : "");
    (blank ? reason : other ? typed : null)?.focus();
    return !blank && !other;
  }

  async function send() {
    if (sending || !valid()) return;
    sending = true;
    submit.setAttribute("aria-disabled", "true");
    setText(submit, "Sending…");
    setText(failure, "");
    try {
      const { note } = await post(`${path}/release`, { leaseId: release.leaseId, mode, reason: reason.value.trim() });
      dialog.close();
      following.begin(release.leaseId, note);
    } catch (error) {
      const words = error instanceof Refusal ? error.message
        : "The plugin does not answer: the request may have been sent. Check the lock before you try again.";
      if (dialog.open) setText(failure, words);
      else following.show(words);
    }
    sending = false;
    setText(submit, action);
    submit.removeAttribute("aria-disabled");
  }

  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    send();
  });
  hook("cancel", dialog).addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
  reason.focus();
  return {
    /** Says when the grant of the dialog is over. @param {import("./lock.js").Release | null} now */
    update(now) {
      if (!dialog.open || sending || now?.leaseId === release.leaseId) return;
      setText(failure, "This grant has ended meanwhile: the lock is free or has another holder. Cancel, and read the lock's state again.");
    },
  };
}

/** @param {HTMLElement} field @param {HTMLElement} place @param {string} error */
function mark(field, place, error) {
  setText(place, error);
  if (error) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
}
