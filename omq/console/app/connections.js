/** The page of all connections, with why one is slow. */

import { OmqError, encodeName, printable } from "../client/omq.js";
import { confirmed, open, toast, tried } from "./dialogs.js";
import { fill, h, setText, wide } from "./dom.js";
import { count, duration, many, reason, size } from "./format.js";
import { Grid, setLong, setNumber } from "./grid.js";
import { pathOf } from "./page.js";

/**
 * @param {import("./page.js").Context} context
 * @returns {import("./page.js").View}
 */
export function connectionsPage(context) {
  /** @type {any[]} */
  let list = [];
  /** @type {Map<number, {time: number, in: number, out: number}>} */
  let before = new Map();
  let filter = "";
  let isAsking = false;

  const text = (/** @type {(each: any) => string} */ of) => (/** @type {Element} */ cell, /** @type {any} */ each) => setText(cell, of(each));
  const grid = new Grid({
    label: "Connections",
    name: "connections",
    sort: "behind",
    key: (each) => each.id,
    onOpen: (each) => details(context, each),
    empty: "No connection matches the filter.",
    columns: [
      { key: "client", title: "Client", value: (each) => clientOf(each).toLowerCase(), update: text(clientOf) },
      { key: "peer", title: "From", isMinor: true, value: (each) => each.peer, update: (cell, each) => setLong(cell, printable(each.peer)) },
      { key: "protocol", title: "Protocol", isMinor: true, value: (each) => each.protocol, update: text((each) => each.protocol + (each.encrypted ? ", TLS" : "")) },
      { key: "age", title: "Since", isNumber: true, isMinor: true, value: (each) => each.age, update: text((each) => duration(each.age)) },
      { key: "in", title: "In /s", isNumber: true, isMinor: true, hint: "Octets received per second", value: (each) => each.inRate, update: text((each) => size(each.inRate)) },
      { key: "out", title: "Out /s", isNumber: true, isMinor: true, hint: "Octets sent per second", value: (each) => each.outRate, update: text((each) => size(each.outRate)) },
      { key: "subscriptions", title: "Subscriptions", isNumber: true, isMinor: true, value: (each) => each.subscriptions, update: (cell, each) => setNumber(cell, each.subscriptions) },
      { key: "behind", title: "Behind", isNumber: true, hint: "Messages that its subscriptions have not been sent yet", value: (each) => each.behind, update: (cell, each) => setNumber(cell, each.behind) },
      { key: "held", title: "Memory", isNumber: true, isMinor: true, value: (each) => each.held, update: text((each) => size(each.held)) },
      {
        key: "slow", title: "State", value: (each) => (each.slow === null ? 0 : 1),
        make: () => h("span", { class: "state" }),
        update: (cell, each) => {
          setText(cell, each.slow === null ? "keeps up" : printable(each.slow));
          cell.className = each.slow === null ? "state good" : "state bad";
          cell.setAttribute("title", cell.textContent);
        },
      },
    ],
  });
  const total = h("p", { class: "counts", role: "status" }, "Loading");
  const note = h("p", { class: "empty", role: "status", hidden: true });
  const search = h("input", {
    type: "search", placeholder: "Filter connections", "aria-label": "Filter connections",
    oninput: (/** @type {any} */ event) => {
      filter = event.target.value.toLowerCase();
      show();
    },
  });
  const element = h(
    "section",
    { class: "page fills" },
    h("div", { class: "title" }, h("h1", {}, "Connections"), total, h("div", { class: "tools" }, search)),
    note,
    grid.element,
  );

  function show() {
    const rows = list.filter((each) => !filter || `${clientOf(each)} ${each.peer} ${each.protocol}`.toLowerCase().includes(filter));
    grid.show(rows);
    const slow = rows.filter((each) => each.slow !== null).length;
    setText(total, `${count(rows.length)}${slow ? ` · ${count(slow)} slow` : ""}`);
  }

  async function ask() {
    const connected = context.client();
    if (!connected || isAsking) return;
    isAsking = true;
    try {
      const found = await connected.connections();
      const now = performance.now();
      const seen = new Map();
      for (const each of found) {
        const earlier = before.get(each.id);
        const seconds = earlier ? (now - earlier.time) / 1000 : 0;
        const per = (/** @type {number} */ is, /** @type {number | undefined} */ was) => (was === undefined || !seconds ? 0 : Math.max(0, is - was) / seconds);
        each.inRate = per(each.octetsIn, earlier?.in);
        each.outRate = per(each.octetsOut, earlier?.out);
        seen.set(each.id, { time: now, in: each.octetsIn, out: each.octetsOut });
      }
      before = seen;
      list = found;
      note.hidden = true;
      grid.element.hidden = false;
      show();
    } catch (error) {
      if (!(error instanceof OmqError)) throw error;
      setText(note, reason(error));
      setText(total, "");
      note.hidden = false;
      grid.element.hidden = true;
    } finally {
      isAsking = false;
    }
  }

  void ask();
  return { element, update: () => void ask(), reconnected: () => void ask(), close: () => grid.close() };
}

/**
 * Return the name of a client for display.
 *
 * @param {any} each
 */
function clientOf(each) {
  return printable(each.client) || (each.protocol === "HTTP" ? "(HTTP)" : "(not known yet)");
}

/**
 * @param {import("./page.js").Context} context
 * @param {any} each
 */
function details(context, each) {
  const name = clientOf(each);
  open(`Connection ${each.id}: ${name}`, (close) => {
    const entries = {
      "From": printable(each.peer),
      "Protocol": each.protocol + (each.encrypted ? " in TLS" : ""),
      "Connected for": duration(each.age),
      "Received": `${size(each.octetsIn)}, ${size(each.inRate)}/s`,
      "Sent": `${size(each.octetsOut)}, ${size(each.outRate)}/s`,
      "Published, not confirmed yet": count(each.unconfirmed),
      "Answers that wait": count(each.answers),
      "Memory held for it": size(each.held),
      "Reads": each.stalled === null ? "yes" : `no, since ${duration(each.stalled)}`,
      "Why it is slow": each.slow === null ? "it is not" : printable(each.slow),
    };
    const figures = h("dl", { class: "properties" });
    fill(figures, ...Object.entries(entries).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
    const heads = ["Topic", "Position", "Behind", "Unconfirmed", "Memory"];
    const table = wide(
      "Subscriptions",
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ...heads.map((head, at) => h("th", { scope: "col", class: at ? "number" : "" }, head)))),
        h(
          "tbody",
          {},
          ...each.furthest.map((/** @type {any} */ subscription) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, h("a", { href: pathOf(encodeName(subscription.topic)), onclick: close }, printable(subscription.topic))),
              h("td", { class: "number" }, subscription.position === null ? "–" : String(subscription.position)),
              h("td", { class: "number" }, count(subscription.behind)),
              h("td", { class: "number" }, subscription.credit === null ? "–" : `${count(subscription.unconfirmed)} of ${count(subscription.credit)}`),
              h("td", { class: "number" }, size(subscription.octets)),
            ),
          ),
        ),
      ),
    );
    const disconnect = async () => {
      close();
      const text = `${name} from ${printable(each.peer)} will be disconnected. It may connect again.`;
      if (!(await confirmed({ title: `Disconnect ${name}?`, text, action: "Disconnect" }))) return;
      let found = false;
      if (!(await tried(async () => void (found = await context.connected().disconnect(each.id))))) return;
      toast(found ? `Disconnected ${name}` : `${name} had ended this connection already`);
    };
    return [
      figures,
      each.furthest.length > 0 && h("h3", {}, each.subscriptions > each.furthest.length ? `The ${each.furthest.length} of ${many(each.subscriptions, "subscription")} that are the furthest behind` : "Subscriptions"),
      each.furthest.length > 0 && table,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: close }, "Close"), h("button", { type: "button", class: "danger", "data-disconnect": true, onclick: () => void disconnect() }, "Disconnect")),
    ];
  });
}

