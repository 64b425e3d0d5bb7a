// A grid of virtual rows: of all rows that match, only the visible ones and a margin are elements.
// One row is active: it has the focus if the grid has, and stays an element wherever it is.

import { el, find, keyed, setText } from "./dom.js";

const MARGIN = 30;
/** How few rows may remain beyond the edge of the view before more are needed. */
const SLACK = 10;
const ROW_REM = 1.75;

/** The widths of columns, and of those that a narrow page shows too: the lock's own view has the rest. */
const OTHER = "minmax(10ch, 1fr)";
const WIDTHS = /** @type {Record<string, string>} */ ({
  RESOURCE: "minmax(18ch, 3fr)", HOLDER: "minmax(12ch, 1.5fr)", POD: "minmax(14ch, 2fr)", TOKEN: "11ch",
  "HELD-FOR": "9ch", WAITING: "9ch", SESSION: "11ch", "FREED-IN": "9ch",
});
const NARROW = /** @type {Record<string, string>} */ ({
  NAMESPACE: "minmax(8ch, 1fr)", RESOURCE: "minmax(13ch, 3fr)", HOLDER: "minmax(9ch, 1.5fr)", WAITING: "7ch", SESSION: "9ch",
});

/** @typedef {{namespace: string, name: string, cells: string[]}} Row */

/** @param {Row} row */
export const keyOf = (row) => `${row.namespace}/${row.name}`;

/** Returns the height of this many rows, in CSS. @param {number} rows */
const heightOf = (rows) => `${rows * ROW_REM}rem`;

export class Grid {
  /** @type {string[]} */
  #columns = [];
  /** @type {Row[]} */
  #rows = [];
  #offset = 0;
  #matched = 0;
  /** The row to focus once it is there: the one that a key asked for. */
  #pending = -1;
  /** Whether to focus the active row once it is there. */
  #returns = false;
  active = { key: "", index: 0 };

  /**
   * @param {HTMLElement} root
   * @param {(key: string) => void} open
   * @param {() => void} need called when rows are visible that were not shown
   */
  constructor(root, open, need) {
    this.root = root;
    this.head = find(".head", root);
    this.body = find(".body", root);
    this.open = open;
    this.need = need;
    root.addEventListener("scroll", () => this.#lacks() && need(), { passive: true });
    root.addEventListener("keydown", (event) => this.#key(event));
    this.body.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const key = rowOf(event)?.dataset.key;
      if (key && getSelection()?.type !== "Range") open(key);
    });
    this.body.addEventListener("focusin", (/** @type {FocusEvent} */ event) => {
      const row = rowOf(event);
      if (row) this.#activate(row.dataset.key ?? "", Number(row.ariaRowIndex) - 2);
    });
  }

  /** Returns the visible rows and a margin. */
  window() {
    const { first, last } = this.#visible();
    const offset = Math.max(0, first - MARGIN);
    return { offset, limit: Math.min(500, last + MARGIN - offset) };
  }

  /** Scrolls to the first row, which becomes active. */
  reset() {
    this.root.scrollTop = 0;
    this.active = { key: "", index: 0 };
    this.#pending = -1;
    this.#returns = false;
  }

  /**
   * Continues where an earlier grid was.
   * @param {{matched: number, top: number, active: {key: string, index: number}}} left
   * @param {boolean} focus whether to focus the active row when it is there
   */
  restore({ matched, top, active }, focus) {
    this.#matched = matched;
    this.body.style.height = heightOf(matched);
    this.root.scrollTop = top;
    this.active = { ...active };
    this.#returns = focus;
  }

  /** Focuses the active row, now or when it is there. */
  focus() {
    this.#move(this.active.index);
  }

  /** @param {{columns: string[], rows: Row[], matched: number}} answer @param {number} offset */
  show({ columns, rows, matched }, offset) {
    const focused = this.root.contains(document.activeElement);
    this.#header(columns);
    this.#rows = rows;
    this.#offset = offset;
    this.#matched = matched;
    this.root.ariaRowCount = String(matched + 1);
    this.root.ariaColCount = String(columns.length);
    this.body.style.height = heightOf(matched);
    this.#follow();
    const items = rows.map((row, at) => ({ row, index: offset + at, key: keyOf(row) }));
    const kept = this.body.kept?.get(this.active.key);
    if (kept && !items.some(({ key }) => key === this.active.key) && matched > 0) {
      items.push({ row: kept.row, index: this.active.index, key: this.active.key });
    }
    keyed(this.body, items, ({ key }) => key, () => this.#create(), (element, item) => this.#update(element, item));
    const pending = this.#pending;
    const wanted = focused || document.activeElement === document.body;
    const returns = wanted && this.#returns && this.body.kept?.has(this.active.key);
    if (returns) this.#returns = false;
    if (returns) this.#move(this.active.index);
    else if (wanted && pending >= offset && pending < offset + rows.length) this.#move(pending);
    else if (focused && !this.body.contains(document.activeElement)) this.#focusActive();
  }

  /** Keeps the active lock active where it is now; if it is gone, activates the row in its place. */
  #follow() {
    const at = this.#rows.findIndex((row) => keyOf(row) === this.active.key);
    if (at >= 0) this.active.index = this.#offset + at;
    else {
      this.active.index = Math.max(0, Math.min(this.active.index, this.#matched - 1));
      const row = this.#rows[this.active.index - this.#offset];
      if (row) this.active.key = keyOf(row);
    }
  }

  #focusActive() {
    const row = this.body.kept?.get(this.active.key);
    (row ?? this.root).focus({ preventScroll: true });
  }

  #create() {
    const cells = this.#columns.map((name) => cell("gridcell", name));
    return el("div", { role: "row", class: "row", "data-testid": "row", tabindex: "-1" }, ...cells);
  }

  /** @param {HTMLElement & {row?: Row}} element @param {{row: Row, index: number, key: string}} item */
  #update(element, { row, index, key }) {
    element.row = row;
    element.dataset.key = key;
    element.ariaRowIndex = String(index + 2);
    element.tabIndex = key === this.active.key ? 0 : -1;
    element.style.top = heightOf(index);
    row.cells.forEach((text, at) => {
      const cell = /** @type {HTMLElement | undefined} */ (element.children[at]);
      if (!cell || cell.dataset.text === text) return;
      cell.dataset.text = text;
      setText(cell, text);
      cell.title = cell.textContent ?? "";
      const name = this.#columns[at];
      const alarm = name === "SESSION" ? !["", "live", "<none>"].includes(text) : text === "due";
      cell.classList.toggle("alarm", alarm);
      cell.classList.toggle("none", text === "<none>");
      cell.classList.toggle("strong", name === "WAITING" && Number(text) > 0);
    });
  }

  /** @param {string[]} columns */
  #header(columns) {
    if (columns.join() === this.#columns.join()) return;
    this.#columns = columns;
    this.body.replaceChildren();
    this.body.kept = undefined;
    const cells = columns.map((name) => cell("columnheader", name, name));
    this.head.replaceChildren(el("div", { role: "row", class: "row", "aria-rowindex": "1" }, ...cells));
    const narrow = columns.filter((name) => name in NARROW);
    this.root.style.setProperty("--columns", columns.map((name) => WIDTHS[name] ?? OTHER).join(" "));
    this.root.style.setProperty("--columns-narrow", narrow.map((name) => NARROW[name]).join(" "));
  }

  /** @param {string} column @param {"ascending" | "descending"} order */
  sorted(column, order) {
    for (const cell of this.head.querySelectorAll("[role=columnheader]")) {
      if (cell.textContent === column) cell.ariaSort = order;
      else cell.removeAttribute("aria-sort");
    }
  }

  #rowHeight() {
    return ROW_REM * parseFloat(getComputedStyle(document.documentElement).fontSize);
  }

  /** Returns the first visible row, and the one after the last. */
  #visible() {
    const height = this.#rowHeight();
    const first = Math.floor(this.root.scrollTop / height);
    return { first, last: first + Math.ceil(this.root.clientHeight / height) + 1 };
  }

  #lacks() {
    const { first, last } = this.#visible();
    const end = this.#offset + this.#rows.length;
    return Math.max(0, first - SLACK) < this.#offset || Math.min(this.#matched, last + SLACK) > end;
  }

  /** Makes a row active and focuses it; if it is not shown yet, when it is. @param {number} index */
  #move(index) {
    if (this.#matched === 0) return;
    index = Math.max(0, Math.min(index, this.#matched - 1));
    const height = this.#rowHeight();
    const head = this.head.offsetHeight;
    const top = index * height;
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    const below = top + height + head - this.root.clientHeight;
    if (below > this.root.scrollTop) this.root.scrollTop = below;
    const row = this.#rows[index - this.#offset];
    this.#pending = row ? -1 : index;
    if (!row) {
      // Until then the grid itself has the focus; a user who leaves it is not brought back.
      if (!this.root.contains(document.activeElement)) this.root.focus({ preventScroll: true });
      return this.need();
    }
    this.#activate(keyOf(row), index);
    this.#focusActive();
    if (this.#lacks()) this.need();
  }

  /** @param {string} key @param {number} index */
  #activate(key, index) {
    const rows = this.body.kept;
    const before = rows?.get(this.active.key);
    if (before) before.tabIndex = -1;
    this.active = { key, index };
    const now = rows?.get(key);
    if (now) now.tabIndex = 0;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.altKey || event.metaKey || event.ctrlKey) return;
    const page = Math.max(1, Math.floor((this.root.clientHeight - this.head.offsetHeight) / this.#rowHeight()) - 1);
    const at = this.#pending >= 0 ? this.#pending : this.active.index;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: this.#matched - 1 };
    if (event.key in to) this.#move(to[/** @type {keyof to} */ (event.key)]);
    else if (event.key === "Enter" && rowOf(event)) this.open(this.active.key);
    else return;
    event.preventDefault();
  }
}

/** @param {Event} event @returns {HTMLElement | null} */
const rowOf = (event) => /** @type {Element} */ (event.target).closest(".body > .row");

/** @param {string} role @param {string} column @param {...string} text */
const cell = (role, column, ...text) => el("div", { role, "data-column": column, class: column in NARROW ? "" : "wide-only" }, ...text);
