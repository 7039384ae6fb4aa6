/** Stored messages, page by page: of a persistent broadcast topic by id and by time, of a queue from its front. */

import { OmqError } from "../client/omq.js";
import { fill, h, select, setText } from "./dom.js";
import { reason, size } from "./format.js";
import { messageRow } from "./messages.js";
import { PAGE, PAGE_OCTETS, queueSource, startBefore, storedSource } from "./pages.js";

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
  /** The id of the first message that is shown. */
  let shown = 0n;
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
      h("button", { type: "button", onclick: () => goBefore(shown) }, "Earlier"),
      // After the last page there is none: the last one may have more messages now.
      h("button", { type: "button", onclick: () => go(after > newest() ? first : after) }, "Later"),
      h("button", { type: "button", onclick: () => goBefore(newest() + 1n) }, "Newest"),
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
      await (found === undefined ? goBefore(newest() + 1n) : go(found));
      if (found === undefined) setText(where, `No message since ${time.value.replace("T", " ")}`);
    } catch (error) {
      if (!(error instanceof OmqError)) throw error;
      setText(note, reason(error));
    }
  }

  /** @param {import("../client/omq.js").Client} client */
  const sourceOf = (client) => (isQueue() ? queueSource : storedSource)(client, name);

  /**
   * Show the page that begins with an id.
   *
   * @param {bigint} from
   */
  const go = (from) => (from > newest() ? goBefore(newest() + 1n) : show(async () => from));

  /**
   * Show the page that ends before an id.
   *
   * @param {bigint} end
   */
  const goBefore = (end) => show((source) => startBefore(source, end, oldest()));

  /** @param {(source: import("./pages.js").Source) => Promise<bigint>} find  the id with which the page begins */
  async function show(find) {
    const client = context.client();
    if (!client) return;
    const mine = ++run;
    let page;
    let begin;
    try {
      const source = sourceOf(client);
      const found = await find(source);
      begin = found > oldest() ? found : oldest();
      page = await source.page(begin, newest());
      if (mine !== run) return;
      first = begin;
    } catch (error) {
      if (!(error instanceof OmqError)) throw error;
      if (mine !== run) return;
      fill(rows);
      setText(note, reason(error));
      note.hidden = false;
      setText(where, "");
      return;
    }
    const { messages } = page;
    const last = messages[messages.length - 1];
    shown = messages[0]?.id ?? first;
    after = page.end;
    const notes = page.gaps.map((gap) => `Messages ${gap.first} to ${gap.last} are gone: ${gap.reason}.`);
    const number = Number(context.store.byName.get(name)?.info.messages ?? 0);
    if (isQueue() && begin <= oldest() && messages.length < Math.min(number, PAGE)) notes.push("Messages of more than a few MiB are not shown.");
    if (page.isCut) notes.push(`These messages are long: the page ends after ${size(PAGE_OCTETS)}.`);
    fill(rows, ...messages.map((message) => messageRow(message, form)));
    setText(note, notes.join(" ") || (last ? "" : "No stored messages here."));
    setText(where, last ? `Messages ${shown} to ${last.id}, the newest is ${newest()}` : "");
    note.hidden = !note.textContent;
  }

  void (isQueue() ? go(oldest()) : goBefore(newest() + 1n));
  return { element, reconnected: () => void go(first) };
}
