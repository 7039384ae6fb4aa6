/** The page of the server: memory, commits, disk, connections, and the last warnings. */

import { printable } from "../client/omq.js";
import { fill, h, notice, wide } from "./dom.js";
import { count, duration, latency, moment, rate, size } from "./format.js";
import { draw, sparkline } from "./sparkline.js";

/** The contents of each share of the memory. @type {Record<string, string>} */
const SHARES = {
  tails: "Recent messages, for subscribers that are slightly behind",
  waiting: "Messages of transient queues that are not done",
  posted: "Messages on their way into the store",
  reading: "Input of connections that is not processed yet",
  replayed: "Stored messages for subscribers that are far behind",
  fetched: "Stored messages for bulk readers",
  listed: "Lists of topics and blocks",
  stalled: "Messages for clients that stopped in the middle of them",
  unconfirmed: "The ids of unconfirmed messages of queues",
  unfinished: "Long lines and envelopes that are not complete",
  uploaded: "Parts of large messages",
};

/**
 * @param {import("./page.js").Context} context
 * @returns {import("./page.js").View}
 */
export function serverPage(context) {
  const { store } = context;
  const about = h("dl", { class: "figures" });
  const memory = h("div", { class: "shares" });
  const commits = h("tbody", {});
  const disk = h("div", { class: "shares" });
  const warnings = h("ol", { class: "log", tabindex: 0, "aria-label": "Warnings and errors" });
  const none = h("p", { class: "empty" }, "No warning since the server was started.");
  const heads = ["Level", "Mean", "Last minute", "Last", "Commits", "Messages", "Waiting"];
  const page = h(
    "section",
    { class: "page", tabindex: 0, "aria-label": "Server" }, // nothing else on it may have the focus, to scroll it by keyboard
    h("div", { class: "title" }, h("h1", {}, "Server")),
    about,
    h(
      "div",
      { class: "cards" },
      card("Memory", memory),
      h(
        "div",
        { class: "stack" },
        card("Commits", wide("Commits", h("table", {}, h("thead", {}, h("tr", {}, ...heads.map(head))), commits))),
        card("Disk", disk),
      ),
      h("div", { class: "whole" }, card("Warnings and errors", warnings, none)),
    ),
  );
  const missing = notice("The server's numbers need the right to watch all topics", h("p", {}, "Sign in as a client that has the right ", h("code", {}, 'watch = ["*"]'), "."));
  const element = h("div", { class: "holder" }, page);
  /** The newest warning that is shown; null before the first look. @type {any} */
  let logged = null;
  /** @type {Map<string, Element>} */
  const charts = new Map();

  function update() {
    const { server } = store;
    const wanted = !server && store.isComplete ? missing : page;
    if (element.firstChild !== wanted) element.replaceChildren(wanted);
    if (!server) return;
    const entries = {
      "Version": server.version,
      "Running for": duration(server.uptime),
      "Connections": `${count(server.connections)} of ${count(server.maxConnections)}`,
      "Protocols": server.protocols.map((/** @type {any} */ each) => `${each.protocol} ${count(each.connections)}`).join(", "),
      "Topics": `${count(server.topics)} of ${count(server.maxTopics)}`,
      "Subscriptions": `${count(server.subscriptions)} of ${count(server.maxSubscriptions)}`,
      "In": `${rate(store.total.in)}/s`,
      "Out": `${rate(store.total.out)}/s`,
      "Connections refused": server.turnedAway ? count(server.turnedAway) : "",
    };
    fill(about, ...Object.entries(entries).filter(([, value]) => value).map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))));
    fill(memory, ...server.memory.map((/** @type {any} */ each) => share(each.name, each.used, each.limit)));
    const { diskFree, diskReserve, storeOctets, spool, spoolLimit } = server;
    fill(
      disk,
      h("dl", { class: "properties" }, h("dt", {}, "Store"), h("dd", {}, size(storeOctets)), h("dt", {}, "Free"), h("dd", {}, size(diskFree)), h("dt", {}, "Nothing is stored below"), h("dd", {}, size(diskReserve)), h("dt", {}, "Spool for slow subscribers"), h("dd", {}, spoolLimit ? `${size(spool)} of ${size(spoolLimit)}` : "none")),
      diskFree < 2 * diskReserve ? h("p", { class: "state bad" }, diskFree < diskReserve ? "The disk is full: nothing is stored." : "The disk is almost full.") : null,
    );
    fill(commits, ...server.writers.map(writerRow));
    showWarnings();
  }

  /** @param {any} writer */
  function writerRow(writer) {
    let chart = charts.get(writer.level);
    if (!chart) charts.set(writer.level, (chart = sparkline()));
    draw(/** @type {any} */ (chart), store.series(store.commits.get(writer.level)));
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, writer.level.toLowerCase(), writer.refusal === null ? null : h("span", { class: "state bad" }, ` ${printable(writer.refusal)}`)),
      h("td", { class: "number" }, writer.meanUs ? latency(writer.meanUs) : "–"),
      h("td", {}, chart),
      h("td", { class: "number" }, writer.commits ? latency(writer.lastCommitUs) : "–"),
      h("td", { class: "number" }, count(writer.commits), writer.failures ? `, ${count(writer.failures)} failed` : ""),
      h("td", { class: "number" }, count(writer.messages)),
      h("td", { class: "number" }, writer.waitingPosts ? `${count(writer.waitingPosts)}, ${size(writer.waitingOctets)}` : "0"),
    );
  }

  function showWarnings() {
    const newest = store.warnings[store.warnings.length - 1]; // a server that was restarted numbers them from 1 again
    if (newest === logged) return;
    logged = newest;
    fill(
      warnings,
      ...[...store.warnings].reverse().map((line) =>
        h("li", { class: line.level.toLowerCase() }, h("time", {}, moment(line.timeUs)), h("span", { class: "level" }, line.level), h("span", {}, printable(line.text))),
      ),
    );
    none.hidden = store.warnings.length > 0;
    warnings.hidden = !none.hidden;
  }

  update();
  return { element, update };
}

/**
 * @param {string} text
 * @param {number} at
 */
function head(text, at) {
  return h("th", { scope: "col", class: at && at !== 2 ? "number" : "" }, text);
}

/**
 * @param {string} title
 * @param {Node[]} content
 */
function card(title, ...content) {
  return h("section", { class: "card", "aria-label": title }, h("h2", {}, title), ...content);
}

/**
 * @param {string} name
 * @param {number} used
 * @param {number} limit
 */
function share(name, used, limit) {
  const part = limit ? Math.min(1, used / limit) : 0;
  const bar = h("meter", { min: 0, max: 1, high: 0.9, "aria-label": name });
  bar.value = part;
  return h(
    "div",
    { class: "share" },
    h("span", {}, name),
    bar,
    h("span", { class: "number" }, `${size(used)} of ${size(limit)}`),
    h("small", { class: "muted" }, SHARES[name] ?? ""), // a later server may have more shares
  );
}
