/** Rows that show messages; each opens to show its whole body, its key and its properties. */

import { printable } from "../client/omq.js";
import { SHOWN, hexOf, preview, whole } from "./bodies.js";
import { fill, h } from "./dom.js";
import { clock, count, moment, size } from "./format.js";

/**
 * @typedef {object} Shown
 * @property {bigint} id
 * @property {Uint8Array} body
 * @property {number} [time]  when it was stored, in microseconds
 * @property {number} [received]  when this page received it
 * @property {number} [size]  of the whole body, if `body` is only its beginning
 * @property {import("../client/lib/heads.js").Head} [head]
 */

/**
 * Make the row of a message.
 *
 * @param {Shown} message
 * @param {import("./bodies.js").Form} form
 * @param {(id: bigint) => Promise<Shown | undefined>} [look]  fetches the message with its head
 */
export function messageRow(message, form, look) {
  const content = h("span", { class: "body" }, preview(message.body, form) || "(empty)");
  const key = message.head?.key;
  const row = h(
    "details",
    { class: "message" },
    h(
      "summary",
      {},
      h("span", { class: "id" }, String(message.id)),
      h("span", { class: "time" }, timeOf(message)),
      h("span", { class: "size" }, size(message.size ?? message.body.length)),
      key ? h("span", { class: "key" }, printable(key)) : null,
      content,
    ),
  );
  row.addEventListener("toggle", () => row.open && void showDetails(row, message, form, look));
  row.restyle = (/** @type {import("./bodies.js").Form} */ other) => {
    form = other;
    content.textContent = preview(message.body, form) || "(empty)";
    if (row.open) void showDetails(row, message, form, look);
  };
  return row;
}

/**
 * @param {HTMLDetailsElement} row
 * @param {Shown} message
 * @param {import("./bodies.js").Form} form
 * @param {((id: bigint) => Promise<Shown | undefined>) | undefined} look
 */
async function showDetails(row, message, form, look) {
  const details = row.querySelector(".details") ?? row.appendChild(h("div", { class: "details" }));
  const write = () => fill(details, properties(message), h("pre", { tabindex: 0, "aria-label": "Body" }, whole(message.body, form)), cut(message));
  write();
  if (message.head || !look) return;
  const found = await look(message.id).catch(() => undefined);
  if (!found || !row.open) return;
  message.head = found.head;
  message.time = found.time;
  write();
}

/** @param {Shown} message */
function timeOf({ time, received }) {
  const known = time ?? received;
  return known ? clock(known) : "";
}

/** @param {Shown} message */
function cut(message) {
  const all = message.size ?? message.body.length;
  const shown = Math.min(message.body.length, SHOWN);
  return all > shown ? h("p", { class: "muted" }, `The first ${count(shown)} of ${count(all)} octets.`) : null;
}

/** @param {Shown} message */
function properties(message) {
  const entries = [
    ["id", String(message.id)],
    ...(message.time ? [["stored", moment(message.time)]] : []),
    ...(message.received ? [["received", moment(message.received)]] : []),
    ["octets", count(message.size ?? message.body.length)],
    ...(message.head?.exchange ? [["exchange", printable(message.head.exchange)]] : []),
    ...(message.head?.key ? [["key", printable(message.head.key)]] : []),
    ...Object.entries(message.head?.properties ?? {}).map(([name, value]) => [name, valueText(value)]),
  ];
  return h("dl", { class: "properties" }, ...entries.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/**
 * @param {any} value
 * @returns {string}
 */
function valueText(value) {
  if (value === null) return "nothing";
  if (typeof value === "string") return printable(value);
  if (value instanceof Uint8Array) return hexOf(value, " ");
  if (value instanceof Date) return value.toISOString();
  if (Array.isArray(value)) return `[${value.map(valueText).join(", ")}]`;
  if (typeof value === "object") {
    return Object.entries(value).map(([name, inner]) => `${printable(name)}: ${valueText(inner)}`).join(", ");
  }
  return String(value);
}
