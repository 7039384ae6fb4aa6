/** Makes elements. Everything that is not an element becomes text; nothing is ever parsed as HTML. */

/** @typedef {Node | string | number | bigint | null | undefined | false} Child */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element: `h("button", { class: "quiet", onclick: close }, "Close")`.
 *
 * @param {string} tag  with the prefix `svg:` an element of SVG
 * @param {Record<string, any>} [attributes]  functions are listeners, true is an attribute without a value
 * @param {Child[]} children
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  const element = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/**
 * @param {Element} element
 * @param {Child[]} children
 */
export function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Replace the content of an element.
 *
 * @param {Element} element
 * @param {Child[]} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/**
 * Set the text of an element if it is another one: this keeps selections, and costs nothing if nothing changed.
 *
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * A labelled field of a form.
 *
 * @param {string} label
 * @param {HTMLElement} input
 * @param {string} [hint]
 */
export function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", {}, label), input, hint && h("small", { class: "muted" }, hint));
}

/**
 * @param {Record<string, string>} options  the text of each value
 * @param {Record<string, any>} [attributes]
 */
export function select(options, attributes = {}) {
  return h("select", attributes, ...Object.entries(options).map(([value, text]) => h("option", { value }, text)));
}

/**
 * A part of a page that scrolls sideways on a narrow screen, also by keyboard.
 *
 * @param {string} label
 * @param {Child[]} children
 */
export function wide(label, ...children) {
  return h("div", { class: "wide", role: "region", tabindex: 0, "aria-label": label }, ...children);
}

/**
 * A message in place of a page.
 *
 * @param {string} title
 * @param {Child[]} children
 */
export function notice(title, ...children) {
  return h("section", { class: "notice" }, h("h1", {}, title), ...children);
}
