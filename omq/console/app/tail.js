/**
 * The live tail of a topic. However many messages come, the page draws a bounded number of them: at most `DRAWN` rows in
 * one frame, some ten frames in a second, and it keeps `KEPT` rows. It counts what it does not draw.
 */

import { OmqError, TopicDeleted } from "../client/omq.js";
import { SHOWN, contains } from "./bodies.js";
import { h, select, setText } from "./dom.js";
import { count, reason } from "./format.js";
import { messageRow } from "./messages.js";

const DRAWN = 25;
const KEPT = 200;
const KEPT_OCTETS = 8 * 2 ** 20;
const FRAME_MS = 100;
const WAITING = "Waiting for messages. What is published from now on appears here.";

/** Settles when the tails before are unsubscribed: a connection has at most one subscription to a topic. */
let former = Promise.resolve();

/**
 * @param {import("./page.js").Context} context
 * @param {string} name
 * @param {(id: bigint) => Promise<any>} [look]
 * @returns {import("./page.js").View}
 */
export function tailView(context, name, look) {
  /** @type {any[]} */
  let pending = [];
  let seen = 0;
  let undrawn = 0;
  let missed = 0;
  /** The number of messages for which the subscriptions before had no room. */
  let skipped = 0;
  /** The number of messages that the subscription had skipped when the counts were cleared. */
  let cleared = 0;
  /** Of the bodies in `rows`, the newest first. @type {number[]} */
  let sizes = [];
  let isPaused = false;
  let filter = "";
  /** @type {import("./bodies.js").Form} */
  let form = "text";
  let timer = 0;
  let isClosed = false;
  /** @type {import("../client/omq.js").Subscription | undefined} */
  let subscription;
  /** @type {Promise<void> | undefined} */
  let leaving;

  const rows = h("div", { class: "messages", role: "log", "aria-label": "Live messages", "aria-live": "off", tabindex: 0 });
  const note = h("p", { class: "empty" }, WAITING);
  const counts = h("span", { class: "counts", id: "tail-counts" }, "0 received");
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: () => setPaused(!isPaused) }, "Pause");
  const element = h(
    "div",
    { class: "tail panel" },
    h(
      "div",
      { class: "tools" },
      pause,
      h("button", { type: "button", onclick: clear }, "Clear"),
      select({ text: "Text", json: "JSON", hex: "Hex" }, { "aria-label": "Show bodies as", onchange: (/** @type {any} */ event) => setForm(event.target.value) }),
      h("input", { type: "search", placeholder: "Filter bodies", "aria-label": "Filter bodies", oninput: (/** @type {any} */ event) => (filter = event.target.value.toLowerCase()) }),
      counts,
    ),
    rows,
    note,
  );

  /** @param {boolean} paused */
  function setPaused(paused) {
    isPaused = paused;
    pause.setAttribute("aria-pressed", String(paused));
    setText(pause, paused ? "Continue" : "Pause");
    element.classList.toggle("paused", paused);
    tell();
  }

  function clear() {
    rows.replaceChildren();
    pending = [];
    sizes = [];
    seen = undrawn = missed = skipped = 0;
    cleared = subscription?.skipped ?? 0;
    tell();
  }

  /** @param {import("./bodies.js").Form} chosen */
  function setForm(chosen) {
    form = chosen;
    for (const row of rows.children) row.restyle(form);
  }

  function tell() {
    // Messages for which the subscription had no room were received, too.
    const roomless = skipped + (subscription?.skipped ?? 0) - cleared;
    const parts = [`${count(seen + roomless)} received`];
    if (undrawn + roomless) parts.push(`${count(undrawn + roomless)} not drawn`);
    if (missed) parts.push(`${count(missed)} missed`);
    if (isPaused) parts.push("paused");
    setText(counts, parts.join(" · "));
  }

  /** @param {import("../client/lib/messages.js").Message} message */
  function take(message) {
    seen++;
    if (isPaused) undrawn++;
    else if (!filter || contains(message.body, filter)) {
      // Keep only the shown part: `slice` copies, so that the rest can be released.
      const { id, body } = message;
      pending.push({ id, body: body.slice(0, SHOWN), size: body.length, received: Date.now() * 1000 });
      if (pending.length > DRAWN) {
        pending.shift();
        undrawn++;
      }
    }
    if (!timer) timer = window.setTimeout(() => requestAnimationFrame(drawPending), FRAME_MS);
  }

  function drawPending() {
    timer = 0;
    if (isClosed) return;
    if (isPaused) {
      undrawn += pending.length;
      pending = [];
      return void tell();
    }
    sizes.unshift(...pending.map(({ body }) => body.length).reverse());
    const made = pending.map((message) => {
      const row = messageRow(message, form, look);
      row.addEventListener("click", () => setPaused(true)); // it would move away while it is read
      return row;
    });
    pending = [];
    rows.prepend(...made.reverse());
    let octets = sizes.reduce((sum, each) => sum + each, 0);
    while (sizes.length > KEPT || octets > KEPT_OCTETS) {
      octets -= sizes.pop() ?? 0;
      rows.lastElementChild.remove();
    }
    note.hidden = rows.childElementCount > 0;
    tell();
  }

  function run() {
    former = former.catch(() => {}).then(follow);
  }

  async function follow() {
    const client = context.client();
    // Before the first round, nobody knows whether the topic is still there, and not a queue: `reconnected` comes then.
    if (isClosed || !client || !context.store.isComplete) return;
    try {
      skipped += subscription?.skipped ?? 0; // of the connection before
      subscription = undefined;
      subscription = await client.subscribe(name, {
        whenFull: "skip",
        onGone: ({ first, last }) => {
          missed += Number(last - first) + 1;
          tell();
        },
      });
      if (isClosed) return void (await subscription.close());
      setText(note, WAITING);
      note.hidden = rows.childElementCount > 0;
      for await (const message of subscription) take(message);
      await leaving;
    } catch (error) {
      if (!(error instanceof OmqError)) throw error;
      if (!isClosed) {
        note.hidden = false;
        setText(note, error instanceof TopicDeleted ? "The topic was deleted." : reason(error));
      }
    }
  }

  run();
  return {
    element,
    close() {
      isClosed = true;
      clearTimeout(timer);
      leaving = subscription?.close();
    },
    // The page is kept when the connection is lost, so a reader loses nothing.
    reconnected: run,
  };
}
