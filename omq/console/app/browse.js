/** Stored messages, page by page: of a persistent broadcast topic by id and by time, of a queue from its front. */

import { OmqError } from "../client/omq.js";
import { fill, h, select, setText } from "./dom.js";
import { count } from "./format.js";
import { messageRow } from "./messages.js";

const PAGE = 50n;

/**
 * @param {import("./page.js").Context} context
 * @param {string} name
 * @returns {import("./page.js").View}
 */
export function browseView(context, name) {
  const isQueue = () => context.store.byName.get(name)?.delivery === "Round_robin";
  /** @type {import("./bodies.js").Form} */
  let form = "text";
  let first = 0n;
  let run = 0;

  const rows = h("div", { class: "messages", "aria-label": "Stored messages" });
  const where = h("span", { class: "counts" });
  const note = h("p", { class: "empty", role: "status" });
  const id = h("input", { type: "text", inputmode: "numeric", pattern: "[0-9]*", size: 12, "aria-label": "From message id" });
  const time = h("input", { type: "datetime-local", step: 1, "aria-label": "From time" });
  const element = h(
    "div",
    { class: "browse panel" },
    h(
      "div",
      { class: "tools" },
      h("button", { type: "button", onclick: () => go(oldest()) }, "Oldest"),
      h("button", { type: "button", onclick: () => go(first - PAGE) }, "Earlier"),
      h("button", { type: "button", onclick: () => go(first + PAGE) }, "Later"),
      h("button", { type: "button", onclick: () => go(newest() - PAGE + 1n) }, "Newest"),
      h("form", { class: "inline", onsubmit: toId }, h("label", {}, "From id ", id), h("button", {}, "Go")),
      isQueue() ? null : h("form", { class: "inline", onsubmit: toTime }, h("label", {}, "From time ", time), h("button", {}, "Go")),
      select({ text: "Text", json: "JSON", hex: "Hex" }, { "aria-label": "Show bodies as", onchange: setForm }),
      where,
    ),
    rows,
    note,
  );

  const oldest = () => BigInt(context.store.byName.get(name)?.info.first ?? 1n);
  const newest = () => BigInt(context.store.byName.get(name)?.info.last ?? 0n);

  /** @param {any} event */
  function setForm(event) {
    form = event.target.value;
    for (const row of rows.children) row.restyle(form);
  }

  /** @param {Event} event */
  function toId(event) {
    event.preventDefault();
    if (/^[0-9]{1,18}$/.test(id.value)) void go(BigInt(id.value));
  }

  /** @param {Event} event */
  async function toTime(event) {
    event.preventDefault();
    const client = context.client();
    const date = new Date(time.value);
    if (!client || Number.isNaN(date.getTime())) return;
    setText(note, "Searching");
    note.hidden = false;
    try {
      const found = await client.firstSince(name, date);
      await (found === undefined ? go(newest() - PAGE + 1n) : go(found));
      if (found === undefined) setText(where, `No message since ${time.value.replace("T", " ")}`);
    } catch (error) {
      if (!(error instanceof OmqError)) throw error;
      setText(note, error.message);
    }
  }

  /** @param {bigint} from */
  async function go(from) {
    const client = context.client();
    if (!client) return;
    const mine = ++run;
    const least = oldest() > 0n ? oldest() : 1n;
    first = from > newest() ? newest() : from;
    if (first < least) first = least;
    const messages = [];
    let gone = "";
    try {
      if (isQueue()) messages.push(...(await client.peek(name, { first, count: Number(PAGE) })).map(peeked));
      else if (newest() > 0n) {
        const onGone = (/** @type {any} */ each) => (gone = `Messages ${each.first} to ${each.last} are gone: ${each.reason}.`);
        for await (const message of client.fetch(name, { first, count: Number(PAGE), onGone })) messages.push(message);
      }
      if (mine !== run) return;
      fill(rows, ...messages.map((message) => messageRow(message, form)));
      setText(note, gone || (messages.length ? "" : "No stored messages here."));
      setText(where, messages.length ? `Messages ${messages[0].id} to ${messages[messages.length - 1].id} of ${count(newest())}` : "");
    } catch (error) {
      if (!(error instanceof OmqError)) throw error;
      fill(rows);
      setText(note, error.message);
      setText(where, "");
    }
    note.hidden = !note.textContent;
  }

  void go(isQueue() ? oldest() : newest() - PAGE + 1n);
  return { element, reconnected: () => void go(first) };
}

/** @param {{id: bigint, size: number, body: Uint8Array, exchange: string, key: string}} message */
function peeked({ id, size, body, exchange, key }) {
  return { id, size, body, head: { exchange, key, properties: {} } };
}
