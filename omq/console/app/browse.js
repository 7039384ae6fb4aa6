/** Stored messages, page by page: of a persistent broadcast topic by id and by time, of a queue from its front. */

import { OmqError } from "../client/omq.js";
import { SHOWN } from "./bodies.js";
import { fill, h, select, setText } from "./dom.js";
import { count, reason, size } from "./format.js";
import { messageRow } from "./messages.js";

const PAGE = 50n;
/** The number of messages that are fetched at a time, with their whole bodies. */
const STEP = 5n;
/** A page of longer messages has fewer of them. */
const PAGE_OCTETS = 8 * 2 ** 20;

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
  let after = 0n;
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
      h("button", { type: "button", onclick: () => go(after) }, "Later"),
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
      setText(note, reason(error));
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
    /** @type {import("./messages.js").Shown[]} */
    let messages = [];
    let gone = "";
    let end = first + PAGE;
    try {
      if (isQueue()) messages.push(...(await client.peek(name, { first, count: Number(PAGE) })).map(peeked));
      else if (newest() > 0n) {
        const onGone = (/** @type {any} */ each) => (gone = `Messages ${each.first} to ${each.last} are gone: ${each.reason}.`);
        ({ messages, end } = await fetched(client, name, first, onGone));
      }
      if (mine !== run) return;
      after = end;
      if (end < first + PAGE) gone ||= `These messages are long: the page ends after ${size(PAGE_OCTETS)}.`;
      fill(rows, ...messages.map((message) => messageRow(message, form)));
      setText(note, gone || (messages.length ? "" : "No stored messages here."));
      setText(where, messages.length ? `Messages ${messages[0].id} to ${messages[messages.length - 1].id} of ${count(newest())}` : "");
    } catch (error) {
      if (!(error instanceof OmqError)) throw error;
      fill(rows);
      setText(note, reason(error));
      setText(where, "");
    }
    note.hidden = !note.textContent;
  }

  void go(isQueue() ? oldest() : newest() - PAGE + 1n);
  return { element, reconnected: () => void go(first) };
}

/**
 * The messages of a page, and where the next page begins. Of long bodies only the beginnings are kept.
 *
 * @param {import("../client/omq.js").Client} client
 * @param {string} name
 * @param {bigint} first
 * @param {(gone: any) => void} onGone
 */
async function fetched(client, name, first, onGone) {
  const stored = await client.blocks(name, first, Number(PAGE));
  const isLong = stored.reduce((sum, block) => sum + block.bytes, 0) > PAGE_OCTETS;
  const step = isLong ? STEP : PAGE;
  /** @type {import("./messages.js").Shown[]} */
  const messages = [];
  let octets = 0;
  let end = first;
  while (end < first + PAGE && octets < PAGE_OCTETS) {
    for await (const message of client.fetch(name, { first: end, count: Number(step), onGone })) {
      octets += message.body.length;
      messages.push({ ...message, body: message.body.slice(0, SHOWN), size: message.body.length });
    }
    end += step;
  }
  return { messages, end };
}

/** @param {{id: bigint, size: number, body: Uint8Array, exchange: string, key: string}} message */
function peeked({ id, size, body, exchange, key }) {
  return { id, size, body, head: { exchange, key, properties: {} } };
}
