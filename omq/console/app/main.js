/** Starts the console: chooses the page by the address, and tells about the connection. */

import { connectionsPage } from "./connections.js";
import { closeAll } from "./dialogs.js";
import { setText } from "./dom.js";
import { timeOfDay } from "./format.js";
import { Link } from "./link.js";
import { loginPage } from "./login.js";
import { serverPage } from "./server.js";
import { Store } from "./store.js";
import { topicPage } from "./topic.js";
import { topicsPage } from "./topics.js";

const store = new Store();
const link = new Link(store);
/** @type {import("./page.js").Context} */
const context = { store, link, client: () => link.client, connected: () => link.connected() };

/** @param {string} id */
const part = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
const [main, banner, status, who, signOut] = ["main", "banner", "link", "client", "sign-out"].map(part);
const [loss, pause] = ["loss", "pause"].map(part);

/** The server sends numbers every second. Without any for this time, those that are shown count as old. */
const SILENCE_MS = 10_000;

/** @type {import("./page.js").View | undefined} */
let view;

/** @param {import("./page.js").View} next */
function show(next) {
  view?.close?.();
  view = next;
  closeAll();
  main.replaceChildren(next.element);
  tellTitle();
}

function tellTitle() {
  document.title = `${main.querySelector("h1")?.textContent ?? "omq"} · omq`;
}

function route() {
  const [page, ...rest] = location.hash.replace(/^#\//, "").split("/");
  const argument = rest.join("/");
  if (page === "topics" && argument) show(topicPage(context, argument));
  else if (page === "connections") show(connectionsPage(context));
  else if (page === "server") show(serverPage(context));
  else show(topicsPage(context));
  view?.update?.();
  tellTitle();
  const current = ["connections", "server"].includes(page) ? page : "topics"; // a page that there is not, too
  for (const item of document.querySelectorAll("nav a")) {
    if (item.getAttribute("data-page") === current) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
}

/** @type {ReturnType<typeof setInterval> | undefined} */
let countdown;
let wasConnected = false;
/** Whether the page must still be told of a new connection. */
let isNew = false;
let isSigningIn = false;

/** @param {import("../client/lib/reconnecting.js").LinkState} state */
function tellLink(state) {
  clearInterval(countdown);
  // While the banner tells of the loss, another attempt is no news.
  if (state.state === "connecting" && !banner.hidden) return;
  status.dataset.state = state.state;
  setText(status, { connecting: "Connecting", connected: "Connected", lost: "Not connected" }[state.state]);
  document.body.classList.toggle("stale", state.state !== "connected" && wasConnected);
  if (state.state === "connected") {
    banner.hidden = true;
    wasConnected = true;
    return;
  }
  if (state.state !== "lost") return;
  const end = Date.now() + state.seconds * 1000;
  const tell = () => {
    const seconds = Math.max(0, Math.round((end - Date.now()) / 1000));
    const what = wasConnected ? "The connection to the server was lost" : "There is no connection to the server";
    setText(loss, `${what}: ${state.why.message}. Trying again`);
    setText(pause, seconds ? ` in ${seconds} s.` : ".");
  };
  banner.hidden = false;
  tell();
  countdown = setInterval(tell, 1000);
}

/** Tell when a connected server has stopped sending numbers, and when it goes on. */
function tellSilence() {
  const silence = performance.now() - store.heard;
  const isSilent = store.isWatching && silence > SILENCE_MS;
  if (status.dataset.state !== (isSilent ? "connected" : "silent")) return;
  status.dataset.state = isSilent ? "silent" : "connected";
  setText(status, isSilent ? `Silent since ${timeOfDay(Date.now() - silence)}` : "Connected");
  document.body.classList.toggle("stale", isSilent);
}

link.addEventListener("state", (event) => tellLink(/** @type {CustomEvent} */ (event).detail));
link.addEventListener("client", () => {
  setText(who, link.name);
  signOut.hidden = !link.name;
  if (isSigningIn) {
    isSigningIn = false;
    route();
  } else {
    isNew = true;
  }
});
link.addEventListener("login", (event) => {
  isSigningIn = true;
  store.begin();
  setText(status, "Not signed in");
  status.dataset.state = "lost";
  banner.hidden = true;
  signOut.hidden = true;
  setText(who, "");
  show(loginPage(context, /** @type {CustomEvent} */ (event).detail.isWrong));
});
store.addEventListener("round", () => {
  // Only the first complete round tells what the topics are now: one may be gone, or a queue has its name.
  if (isNew && store.isComplete) {
    isNew = false;
    view?.reconnected?.();
  }
  view?.update?.();
  tellTitle();
});
part("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the page
  main.focus();
});
signOut.addEventListener("click", () => link.signOut());
window.addEventListener("hashchange", () => {
  if (isSigningIn) return;
  route();
  main.focus({ preventScroll: true });
});
// A page that the browser puts aside reads nothing: it must not stay connected.
window.addEventListener("pagehide", () => link.stop());
window.addEventListener("pageshow", (event) => event.persisted && void link.start());

route();
setInterval(tellSilence, 1000);
void link.start();
