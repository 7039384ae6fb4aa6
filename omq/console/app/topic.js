/** The page of one topic: its numbers, its messages, its subscribers. */

import { OmqError, Refused, decodeName, printable } from "../client/omq.js";
import { browseView } from "./browse.js";
import { closeAll, confirmed, open, toast, tried } from "./dialogs.js";
import { field, fill, h, notice, setText, wide } from "./dom.js";
import { count, duration, many, rate, reason, size } from "./format.js";
import { octetsOf } from "./page.js";
import { draw, sparkline } from "./sparkline.js";
import { tailView } from "./tail.js";
import { declareDialog, retention, typesText, waitingText } from "./topics.js";

/** @param {{first: bigint, last: bigint}} info */
function idsOf({ first, last }) {
  if (first <= last) return `${first} – ${last}`;
  return last > 0n ? `none, the next is ${last + 1n}` : "none yet";
}

const encoder = new TextEncoder();

/** After how long a Publish says that it waits. */
const LATE_MS = 2000;

/**
 * @param {import("./page.js").Context} context
 * @param {string} path  the escaped octets of its name
 * @returns {import("./page.js").View}
 */
export function topicPage(context, path) {
  const { store } = context;
  const name = decodeName(octetsOf(path));
  const state = () => store.byName.get(name);
  /** @type {import("./page.js").View | undefined} */
  let view;
  /** The topic that is shown, as `kindOf` names it; empty if there is none. @type {string | undefined} */
  let shown;
  let chosen = "";

  const element = h("div", { class: "holder" });
  const types = h("span", { class: "badge" });
  const chart = sparkline();
  const figures = h("dl", { class: "figures" });
  const panel = h("div", { class: "tab-panel", role: "tabpanel", id: "tab-panel" });
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "What to show", onkeydown: moved });

  const isQueue = () => state()?.delivery === "Round_robin";
  const isPersistent = () => state()?.persistence !== "Transient";
  const isReplayed = () => !isQueue() && isPersistent();

  const look = async (/** @type {bigint} */ id) => {
    const client = context.client();
    if (client && isReplayed()) for await (const message of client.fetch(name, { first: id, count: 1 })) return message;
    return undefined;
  };

  /** @type {Record<string, [title: string, make: () => import("./page.js").View]>} */
  const VIEWS = {
    live: ["Live", () => tailView(context, name, isReplayed() ? look : undefined)],
    stored: ["Stored messages", () => browseView(context, name)],
    publish: ["Publish", () => publishView(context, name)],
    subscribers: ["Subscribers", () => subscribersView(context, name)],
  };

  /** @param {string} key */
  function select(key) {
    if (key === chosen) return;
    chosen = key;
    view?.close?.();
    view = VIEWS[key][1]();
    panel.replaceChildren(view.element);
    panel.setAttribute("aria-labelledby", `tab-${key}`);
    for (const tab of tabs.children) {
      const isChosen = tab.id === `tab-${key}`;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
    }
    view.update?.();
  }

  /** @param {KeyboardEvent} event */
  function moved(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...tabs.children];
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.focus();
    next.click();
  }

  function build() {
    // A live view of a queue would take its messages away from the workers.
    const keys = isQueue() ? ["stored", "publish", "subscribers"] : isReplayed() ? ["live", "stored", "publish", "subscribers"] : ["live", "publish", "subscribers"];
    tabs.replaceChildren(
      ...keys.map((key) =>
        h("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "tab-panel", onclick: () => select(key) }, VIEWS[key][0]),
      ),
    );
    fill(
      element,
      h(
        "section",
        { class: "page fills topic-page" },
        h(
          "div",
          { class: "title" },
          h("a", { href: "#/topics", class: "back", "aria-label": "All topics" }, "←"),
          h("h1", {}, printable(name)),
          types,
          h(
            "div",
            { class: "tools" },
            isPersistent() && h("button", { type: "button", onclick: () => retentionDialog(context, name) }, "Retention"),
            (isPersistent() || isQueue()) && h("button", { type: "button", onclick: purge }, "Purge"),
            h("button", { type: "button", class: "danger", id: "delete", onclick: remove }, "Delete"),
          ),
        ),
        h("div", { class: "summary" }, figures, h("div", { class: "chart" }, chart, h("small", { class: "muted" }, "in per second, last minute"))),
        tabs,
        panel,
      ),
    );
    chosen = "";
    select(keys[0]);
  }

  async function remove() {
    const text = `All ${count(state()?.info.messages ?? 0)} messages of ${printable(name)} will be deleted, and its subscribers will be unsubscribed. This cannot be undone.`;
    if (!(await confirmed({ title: `Delete ${printable(name)}?`, text, action: "Delete the topic" }))) return;
    if (await tried(async () => context.connected().delete(name))) {
      toast(`Deleted ${printable(name)}`);
      location.hash = "#/topics";
    }
  }

  async function purge() {
    const text = isQueue() ? "All messages that no worker has yet will be deleted." : "All stored messages will be deleted.";
    if (!(await confirmed({ title: `Purge ${printable(name)}?`, text: `${text} This cannot be undone.`, action: "Delete the messages" }))) return;
    await tried(async () => toast(`Deleted ${many(await context.connected().purge(name), "message")}`));
  }

  function update() {
    const topic = state();
    if (!topic) {
      if (!store.isComplete || shown === "") return;
      shown = "";
      closeAll();
      view?.close?.();
      view = undefined;
      fill(
        element,
        notice(
          "There is no such topic",
          h("p", {}, `The server has no topic ${printable(name)}, or this client has no right to it.`),
          h("p", {}, h("button", { type: "button", class: "primary", onclick: () => declareDialog(context, name) }, "Declare it"), " ", h("a", { href: "#/topics" }, "All topics")),
        ),
      );
      return;
    }
    if (shown !== kindOf(topic)) {
      shown = kindOf(topic);
      closeAll();
      build();
    }
    const { info } = topic;
    setText(types, typesText(topic));
    draw(chart, store.series(topic.history, topic.round));
    const entries = {
      "In": `${rate(topic.inRate)}/s`,
      "Out": topic.isWatched ? `${rate(topic.outRate)}/s` : "",
      "Messages": count(info.messages),
      "Size": size(info.octets),
      "Ids": idsOf(info),
      "Subscribers": count(info.subscribers),
      [isQueue() ? "Not done" : "Slowest is behind"]: waitingText(topic),
      "Unconfirmed": isQueue() && info.unconfirmed !== undefined ? count(info.unconfirmed) : "",
      "Keeps": retention(info),
      "Publishers waiting": info.waiting ? count(info.waiting) : "",
      "Failed commits": info.failures ? count(info.failures) : "",
    };
    fill(figures, ...Object.entries(entries).filter(([, value]) => value).map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))));
    view?.update?.();
  }

  update();
  return {
    element,
    update,
    reconnected() {
      const topic = state();
      if (topic && shown === kindOf(topic)) view?.reconnected?.(); // else `update` makes another view
    },
    close: () => view?.close?.(),
  };
}

/**
 * Return the identity of a topic for its view: another topic may have the same name.
 *
 * @param {import("./store.js").TopicState} topic
 */
const kindOf = ({ id, delivery, persistence }) => `${id} ${delivery} ${persistence}`;

/**
 * @param {import("./page.js").Context} context
 * @param {string} name
 * @returns {import("./page.js").View}
 */
function publishView(context, name) {
  const body = h("textarea", { rows: 8, name: "body", spellcheck: "false" });
  const result = h("span", { class: "counts", role: "status" });
  // The server reads nothing more from a connection that publishes to a full topic, until there is room. So this is not
  // the connection of the other views.
  const left = new AbortController();
  /** @type {import("../client/omq.js").Client | undefined} */
  let client;
  let isSending = false;
  /** @param {Event} event */
  async function publish(event) {
    event.preventDefault();
    if (isSending) return;
    isSending = true;
    setText(result, "Sending");
    const late = setTimeout(() => setText(result, "Waiting: the topic may be full"), LATE_MS);
    try {
      if (!client?.isOpen) client = await context.link.another(left.signal);
      if (left.signal.aborted) return void client.close();
      await client.publish(name, encoder.encode(body.value));
      await client.confirm();
      setText(result, "Confirmed");
    } catch (error) {
      if (left.signal.aborted) return;
      if (!(error instanceof OmqError)) throw error;
      setText(result, error instanceof Refused && error.refusals.length ? error.refusals[0] : error.message);
    } finally {
      clearTimeout(late);
      isSending = false;
    }
  }
  const form = h("form", { class: "panel publish", onsubmit: publish }, field("Body", body, "Text, sent as UTF-8. Ctrl+Enter sends it."), h("div", { class: "buttons" }, result, h("button", { class: "primary" }, "Publish")));
  body.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return {
    element: form,
    close() {
      left.abort();
      void client?.close();
    },
  };
}

/**
 * @param {import("./page.js").Context} context
 * @param {string} name
 * @returns {import("./page.js").View}
 */
function subscribersView(context, name) {
  const table = h("tbody", {});
  const note = h("p", { class: "empty", role: "status" }, "Loading");
  const heads = ["Client", "From", "Protocol", "Position", "Behind", "Unconfirmed", "Stalled"];
  const element = h(
    "div",
    { class: "panel" },
    wide("Subscribers", h("table", {}, h("thead", {}, h("tr", {}, ...heads.map((head, at) => h("th", { scope: "col", class: at > 2 ? "number" : "" }, head)))), table)),
    note,
  );
  let isAsking = false;
  async function update() {
    const client = context.client();
    if (!client || isAsking) return;
    isAsking = true;
    try {
      const found = await client.subscribers(name);
      fill(
        table,
        ...found.map((each) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, printable(each.client) || "–"),
            h("td", {}, printable(each.peer)),
            h("td", {}, each.protocol),
            h("td", { class: "number" }, each.position === null ? "–" : String(each.position)),
            h("td", { class: "number" }, count(each.behind)),
            h("td", { class: "number" }, each.credit === null ? "–" : `${count(each.unconfirmed)} of ${count(each.credit)}`),
            h("td", { class: "number" }, each.stalled === null ? "–" : duration(each.stalled)),
          ),
        ),
      );
      setText(note, found.length ? "" : "Nobody is subscribed.");
      note.hidden = found.length > 0;
    } catch (error) {
      if (!(error instanceof OmqError)) throw error;
      setText(note, reason(error));
      note.hidden = false;
    } finally {
      isAsking = false;
    }
  }
  return { element, update: () => void update() };
}

/**
 * @param {import("./page.js").Context} context
 * @param {string} name
 */
function retentionDialog(context, name) {
  const info = context.store.byName.get(name)?.info ?? {};
  open(`Retention of ${printable(name)}`, (close) => {
    const hours = h("input", { type: "number", min: 0, step: "any", name: "hours", value: info.retentionMs ? info.retentionMs / 3_600_000 : "" });
    const mebi = h("input", { type: "number", min: 0, step: "any", name: "mebi", value: info.retentionOctets ? info.retentionOctets / 2 ** 20 : "" });
    /** @param {{octets: number | null, ms: number | null} | undefined} limits */
    const keep = async (limits) => {
      if (await tried(async () => context.connected().retain(name, limits))) {
        close();
        toast("The retention was changed");
      }
    };
    // Only Watch tells the limits: who does not see them must not remove one by leaving its field empty.
    const isKnown = info.retentionOctets !== undefined;
    const mayRemove = async (/** @type {{octets: number | null, ms: number | null}} */ { octets, ms }) => {
      const without = [ms === null && "time", octets === null && "size"].filter(Boolean).join(" and of ");
      if (isKnown || !without) return true;
      const text = `This client may not watch the topic, so its limits are not shown. It will have no limit of ${without}.`;
      return confirmed({ title: `Remove limits of ${printable(name)}?`, text, action: "Change" });
    };
    const limit = (/** @type {any} */ input, /** @type {number} */ unit) => (input.value === "" ? null : Math.round(Number(input.value) * unit));
    return [
      h(
        "form",
        {
          onsubmit: (/** @type {Event} */ event) => {
            event.preventDefault();
            const limits = { ms: limit(hours, 3_600_000), octets: limit(mebi, 2 ** 20) };
            void mayRemove(limits).then((may) => (may ? keep(limits) : undefined));
          },
        },
        field("Hours", hours, "Older messages are deleted. Empty: no limit."),
        field("MiB", mebi, "The oldest messages beyond this size are deleted. Empty: no limit."),
        h(
          "div",
          { class: "buttons" },
          h("button", { type: "button", onclick: close }, "Cancel"),
          h("button", { type: "button", onclick: () => void keep(undefined) }, "As configured"),
          h("button", { class: "primary" }, "Change"),
        ),
      ),
    ];
  });
}
