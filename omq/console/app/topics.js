/** The page of all topics. */

import { encodeName, printable } from "../client/omq.js";
import { open, tried, toast } from "./dialogs.js";
import { field, h, notice, select, setText } from "./dom.js";
import { count, duration, rate, size } from "./format.js";
import { Grid, setLong, setNumber } from "./grid.js";
import { pathOf } from "./page.js";
import { draw, sparkline } from "./sparkline.js";

/**
 * Return the retention of a topic in words.
 *
 * @param {any} info
 */
export function retention(info) {
  if (info.retentionOctets === undefined || info.persistence === "Transient") return "";
  const limits = [];
  if (info.retentionMs !== null) limits.push(duration(info.retentionMs));
  if (info.retentionOctets !== null) limits.push(size(info.retentionOctets));
  return limits.length ? limits.join(", ") : "all";
}

/**
 * Messages that wait: of a queue those that are not done, else how far the slowest subscriber is behind. Only Watch tells
 * that: undefined without it.
 *
 * @param {import("./store.js").TopicState} state
 * @returns {number | undefined}
 */
export function waiting({ delivery, info }) {
  return delivery === "Round_robin" ? info.messages : info.behind;
}

/** @param {import("./store.js").TopicState} state */
export function waitingText(state) {
  const number = waiting(state);
  return number === undefined ? "–" : count(number);
}

/** @param {Element} cell @param {import("./store.js").TopicState} state */
function setWaiting(cell, state) {
  const number = waiting(state);
  if (number === undefined) setText(cell, "–");
  else setNumber(cell, number);
}

/**
 * @param {import("./page.js").Context} context
 * @returns {import("./page.js").View}
 */
export function topicsPage(context) {
  const { store } = context;
  let filter = "";
  let kind = "";

  const name = (/** @type {import("./store.js").TopicState} */ state) => printable(state.topic);
  const text = (/** @type {(state: any) => string} */ of) => (/** @type {Element} */ cell, /** @type {any} */ state) => setText(cell, of(state));
  const grid = new Grid({
    label: "Topics",
    name: "topics",
    sort: "in",
    key: (state) => state.id,
    onOpen: (state) => (location.hash = pathOf(encodeName(state.topic))),
    empty: "No topic matches the filter.",
    columns: [
      {
        key: "name",
        title: "Topic",
        value: (state) => name(state).toLowerCase(),
        make: () => h("a", { tabindex: -1 }), // by keyboard, the grid opens its active row
        update: (link, state) => {
          setText(link, name(state));
          link.setAttribute("href", pathOf(encodeName(state.topic)));
          link.setAttribute("title", name(state));
        },
      },
      { key: "kind", title: "Kind", isMinor: true, value: (state) => state.delivery, update: text((state) => (state.delivery === "Broadcast" ? "broadcast" : "queue")) },
      { key: "kept", title: "Persistence", isMinor: true, value: (state) => state.persistence, update: text((state) => state.persistence.toLowerCase()) },
      { key: "in", title: "In /s", isNumber: true, hint: "Messages published per second", value: (state) => state.inRate, update: text((state) => rate(state.inRate)) },
      { key: "spark", title: "Last minute", isMinor: true, make: sparkline, update: (chart, state) => draw(chart, store.series(state.history, state.round)) },
      { key: "out", title: "Out /s", isNumber: true, isMinor: true, hint: "Messages sent per second, to all subscribers together", value: (state) => state.outRate, update: text((state) => (state.isWatched ? rate(state.outRate) : "–")) },
      { key: "messages", title: "Messages", isNumber: true, value: (state) => state.info.messages, update: (cell, state) => setNumber(cell, state.info.messages) },
      { key: "octets", title: "Size", isNumber: true, isMinor: true, value: (state) => state.info.octets, update: text((state) => size(state.info.octets)) },
      { key: "subscribers", title: "Subscribers", isNumber: true, isMinor: true, value: (state) => state.info.subscribers, update: (cell, state) => setNumber(cell, state.info.subscribers) },
      { key: "behind", title: "Waiting", isNumber: true, hint: "Queues: messages that are not done. Others: how far the slowest subscriber is behind.", value: (state) => waiting(state) ?? -1, update: setWaiting },
      { key: "retention", title: "Keeps", isMinor: true, update: (cell, state) => setLong(cell, retention(state.info)) },
    ],
  });

  // A screen reader reads a status at each change: the rate, which changes all the time, is none.
  const total = h("span", { role: "status" });
  const speed = h("span");
  const search = h("input", {
    type: "search", placeholder: "Filter topics", "aria-label": "Filter topics",
    oninput: (/** @type {any} */ event) => {
      filter = event.target.value.toLowerCase();
      update();
    },
  });
  const chosen = select({ "": "All kinds", Broadcast: "Broadcast", Round_robin: "Queues" }, {
    "aria-label": "Kind",
    onchange: (/** @type {any} */ event) => {
      kind = event.target.value;
      update();
    },
  });
  const list = h(
    "section",
    { class: "page fills" },
    h("div", { class: "title" }, h("h1", {}, "Topics"), h("p", { class: "counts" }, total, speed), h("div", { class: "tools" }, search, chosen, h("button", { type: "button", class: "primary", onclick: () => declareDialog(context) }, "Declare a topic"))),
    grid.element,
  );
  const element = h("div", { class: "holder" }, list);
  let shown = list;

  function update() {
    const wanted = store.isComplete && store.topics.size === 0 ? emptyPage() : list;
    if (wanted !== shown) {
      shown = wanted;
      element.replaceChildren(wanted);
    }
    const rows = [...store.topics.values()].filter(
      (state) => (!kind || state.delivery === kind) && (!filter || name(state).toLowerCase().includes(filter)),
    );
    grid.show(rows);
    const of = rows.length === store.topics.size ? "" : ` of ${count(store.topics.size)}`;
    setText(total, store.isComplete ? `${count(rows.length)}${of}` : "Loading");
    setText(speed, store.isComplete ? ` · ${rate(store.total.in)} messages/s in` : "");
    grid.note.hidden = rows.length > 0 || !store.isComplete;
  }

  /** @type {HTMLElement | undefined} */
  let greeting;
  const unseen = notice("No topics", h("p", {}, "The server has no topics, or this client has no right to any of them."));
  // Only who may watch the whole server knows that there are none.
  const emptyPage = () => (store.server ? (greeting ??= greet(context)) : unseen);

  update();
  return { element, update, close: () => grid.close() };
}

/** @param {import("./page.js").Context} context */
function greet(context) {
  const server = location.protocol === "https:" ? `omqs://${location.host}` : `omq://${location.host}`;
  const option = location.host === "127.0.0.1:7730" || location.host === "localhost:7730" ? "" : ` --server ${server}`;
  const commands = [
    ["Watch a topic, in one terminal", `omq sub weather${option}`],
    ["Publish a message, in another", `omq pub weather "sunny, 21 degrees"${option}`],
    ["List the topics", `omq topics${option}`],
  ];
  return h(
    "section",
    { class: "page greeting" },
    h("h1", {}, "This server has no topics yet"),
    h("p", {}, "A topic appears here with the first message or the first subscriber. Three commands to try:"),
    h(
      "ol",
      { class: "steps" },
      ...commands.map(([what, command]) =>
        h(
          "li",
          {},
          h("span", {}, what),
          h("div", { class: "command" }, h("code", {}, command), h("button", { type: "button", class: "quiet", "aria-label": `Copy: ${what}`, onclick: () => void copy(command) }, "Copy")),
        ),
      ),
    ),
    h("p", {}, "Or ", h("button", { type: "button", class: "primary", onclick: () => declareDialog(context) }, "Declare a topic"), " here."),
  );
}

/** @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast("The browser does not allow that: select the command and copy it", "bad");
  }
}

/**
 * Ask for the types of a new topic.
 *
 * @param {import("./page.js").Context} context
 * @param {string} [name]
 */
export function declareDialog(context, name = "") {
  open("Declare a topic", (close) => {
    const topic = h("input", { type: "text", required: true, value: name, autocomplete: "off", name: "topic" });
    const delivery = explained("delivery", {
      Broadcast: ["Broadcast", "Every subscriber gets every message."],
      Round_robin: ["Queue", "Each message goes to one subscriber."],
    });
    const persistence = explained("persistence", {
      Weak: ["Weak", "Written before it is confirmed, on disk every few seconds."],
      Strong: ["Strong", "On disk before it is confirmed."],
      Async: ["Async", "Written before it is confirmed, on disk every minute."],
      Transient: ["Transient", "In memory only."],
    });
    /** @param {Event} event */
    async function declare(event) {
      event.preventDefault();
      const done = await tried(async () => {
        await context.connected().declare(topic.value, { delivery: delivery.input.value, persistence: persistence.input.value });
      });
      if (!done) return;
      close();
      toast(`Declared ${printable(topic.value)}`);
      location.hash = pathOf(encodeName(topic.value));
    }
    return [
      h(
        "form",
        { onsubmit: declare },
        field("Name", topic),
        field("Delivery", delivery.input, delivery.hint),
        field("Persistence", persistence.input, persistence.hint),
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: close }, "Cancel"), h("button", { class: "primary" }, "Declare")),
      ),
    ];
  });
}

/**
 * A selection of one word, and a sentence about it: one line for both would be cut off on a narrow screen.
 *
 * @param {string} name
 * @param {Record<string, [string, string]>} options  the word and the sentence of each value
 */
function explained(name, options) {
  const hint = h("span");
  const show = () => setText(hint, options[input.value][1]);
  const input = select(Object.fromEntries(Object.entries(options).map(([value, [word]]) => [value, word])), { name, onchange: show });
  show();
  return { input, hint };
}

/** @param {import("./store.js").TopicState} state */
export function typesText(state) {
  return `${state.delivery === "Broadcast" ? "Broadcast" : "Queue"}, ${state.persistence.toLowerCase()}`;
}

