// Elements of the page. Names and texts come from tenants: they only ever become text nodes. The server has escaped
// characters that could reorder or hide a text.

/**
 * Returns the element of a selector that must match.
 * @param {string} selector
 * @param {ParentNode} [root]
 * @returns {any}
 */
export function find(selector, root = document) {
  const found = root.querySelector(selector);
  if (!found) throw new Error(`no element ${selector}`);
  return found;
}

/** Returns the element with this hook. @param {string} id @param {ParentNode} root @returns {any} */
export const hook = (id, root) => find(`[data-testid="${id}"]`, root);

/** Fills an element with a template. @param {HTMLElement} root @param {string} name */
export function fromTemplate(root, name) {
  root.replaceChildren(find(`#${name}-template`).content.cloneNode(true));
}

/**
 * Returns a new element.
 * @param {string} tag
 * @param {Record<string, string>} [attributes]
 * @param {...(Node | string)} children
 * @returns {any}
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Sets a text; leaves an unchanged one alone, so that selections and announcements survive. @param {Element} node @param {unknown} text */
export function setText(node, text) {
  const next = String(text ?? "");
  if (node.textContent !== next) node.textContent = next;
}

/**
 * Makes the children of `parent` those of `items`, and reuses the elements of items with the same key.
 * The focused child is never moved: a moved element loses the focus.
 * @template T
 * @param {Element & {kept?: Map<string, HTMLElement>}} parent
 * @param {T[]} items
 * @param {(item: T, index: number) => string} keyOf
 * @param {(item: T) => HTMLElement} create
 * @param {(element: HTMLElement, item: T, index: number) => void} update
 */
export function keyed(parent, items, keyOf, create, update) {
  const before = parent.kept ?? new Map();
  const kept = new Map();
  items.forEach((item, index) => {
    const key = keyOf(item, index);
    if (kept.has(key)) return;
    const element = before.get(key) ?? create(item);
    update(element, item, index);
    kept.set(key, element);
  });
  for (const [key, element] of before) if (!kept.has(key)) element.remove();
  parent.kept = kept;
  const elements = [...kept.values()];
  const focused = elements.findIndex((element) => element.contains(document.activeElement));
  place(parent, elements.slice(0, Math.max(focused, 0)), parent.firstChild);
  const rest = focused < 0 ? parent.firstChild : elements[focused].nextSibling;
  place(parent, elements.slice(focused + 1), rest);
}

/** @param {Element} parent @param {HTMLElement[]} elements @param {ChildNode | null} next */
function place(parent, elements, next) {
  for (const element of elements) {
    if (element === next) next = next.nextSibling;
    else parent.insertBefore(element, next);
  }
}

/** Shows lines of text, each with its indentation. @param {Element} parent @param {string[]} texts */
export function lines(parent, texts) {
  keyed(parent, texts, (_, index) => String(index), () => el("p"), (element, text) => {
    const indent = text.length - text.trimStart().length;
    element.style.paddingInlineStart = `${indent + 2}ch`;
    element.classList.toggle("alarm", text.startsWith("Possible deadlock"));
    setText(element, text.trim() || "\u00a0");
  });
}

/** Returns the address of a lock's view. @param {{namespace: string, name: string}} lock */
export const lockHash = (lock) => `#/lock/${encodeURIComponent(lock.namespace)}/${encodeURIComponent(lock.name)}`;

/** @param {number} n */
export function ordinal(n) {
  const tens = n % 100 > 10 && n % 100 < 14;
  return n + ((!tens && ["th", "st", "nd", "rd"][n % 10]) || "th");
}

/** @param {number} n @param {string} one @param {string} many */
export const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
