/** The connection of the console: it is made again when it is lost, and feeds the store. */

import { OmqError, Refused, connect, keepConnected } from "../client/omq.js";

const PERIOD_MS = 1000;
const POLL_MS = 2000;
const NO_CLIENT = "Connect: no client has this name and secret";
const KEY = "omq-console-id";
/** The id without a login. The server logs the part before a colon. */
const NOBODY = "omq-console";

/** Tells `state` (with `state`, `why`, `seconds`), `client` (with a new client) and `login` (a client is wanted). */
export class Link extends EventTarget {
  /** @type {import("../client/omq.js").Client | undefined} */
  client = undefined;
  /** @type {AbortController} */
  #abort = new AbortController();
  #store;

  /** @param {import("./store.js").Store} store */
  constructor(store) {
    super();
    this.#store = store;
  }

  /** The name that was signed in with; empty without. */
  get name() {
    return (sessionStorage.getItem(KEY) ?? "").split(":")[0];
  }

  /** The client that is connected now. Throws OmqError if there is none. */
  connected() {
    if (!this.client) throw new OmqError("not connected to the server");
    return this.client;
  }

  /**
   * Open another connection for this client. It is closed with the connection of the console at the latest.
   *
   * @param {AbortSignal} signal  gives up the attempt
   */
  async another(signal) {
    this.connected();
    const ended = this.#abort.signal;
    const client = await connect(url(), { id: sessionStorage.getItem(KEY) ?? NOBODY, signal: AbortSignal.any([signal, ended]) });
    if (ended.aborted) void client.close();
    ended.addEventListener("abort", () => void client.close(), { once: true });
    return client;
  }

  /**
   * Connect, and stay connected.
   *
   * @returns {Promise<void>}
   */
  async start() {
    this.#abort.abort();
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    const id = sessionStorage.getItem(KEY);
    if (id === null && (await wantsClient(signal))) return this.#tell("login", { isWrong: false });
    if (signal.aborted) return;
    try {
      await keepConnected((signal) => connect(url(), { id: id ?? NOBODY, signal, silence: 100 }), {
        signal,
        longest: 5,
        onState: (state) => {
          if (state.state !== "connected") this.client = undefined;
          this.#tell("state", state);
        },
        use: (client) => {
          this.client = client;
          this.#store.begin();
          this.#tell("client", client);
          void this.#observe(client);
        },
        isFinal: (error) => error instanceof OmqError && error.message === NO_CLIENT,
      });
    } catch (error) {
      if (!(error instanceof OmqError)) throw error;
      this.#tell("login", { isWrong: id !== null });
    }
  }

  /**
   * Sign in. The secret is kept until the tab is closed, and sent to this server only.
   *
   * @param {string} name
   * @param {string} secret
   */
  signIn(name, secret) {
    sessionStorage.setItem(KEY, `${name}:${secret}`);
    void this.start();
  }

  /** Close the connection, until `start`. */
  stop() {
    this.#abort.abort();
  }

  signOut() {
    sessionStorage.removeItem(KEY);
    this.#store.clear();
    void this.start();
  }

  /**
   * Feed the store as long as this client is connected.
   *
   * @param {import("../client/omq.js").Client} client
   */
  async #observe(client) {
    try {
      let isPolling = false;
      for await (const value of client.watch(PERIOD_MS)) {
        this.#store.take(value);
        if (value.kind !== "Complete" || this.#store.server || isPolling) continue;
        // It may watch some topics only, and may see others.
        isPolling = true;
        void this.#poll(client).then(() => (isPolling = false));
      }
    } catch (error) {
      if (error instanceof Refused) await this.#poll(client); // it may not watch
      else if (!(error instanceof OmqError)) throw error;
    }
  }

  /** @param {import("../client/omq.js").Client} client */
  async #poll(client) {
    try {
      while (client.isOpen && !this.#store.server) {
        const begun = performance.now();
        this.#store.takeList(await client.topics());
        // A long list takes a while to be read; the page must have the most of the time.
        const pause = Math.max(POLL_MS, 10 * (performance.now() - begun));
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    } catch (error) {
      if (!(error instanceof OmqError)) throw error;
    }
  }

  /**
   * @param {string} type
   * @param {any} detail
   */
  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/** Return the URL at which the server accepts connections. */
function url() {
  const found = new URL("/ws", location.href);
  found.protocol = found.protocol === "https:" ? "wss:" : "ws:";
  return found;
}

/**
 * Whether the server has configured clients. A connection without one would be a warning in its log.
 *
 * @param {AbortSignal} signal
 */
async function wantsClient(signal) {
  try {
    // Without credentials, so that the browser does not ask for them itself.
    const { status } = await fetch("/readyz", { credentials: "omit", signal });
    return status === 401 || status === 403;
  } catch {
    return false; // it cannot be reached: the connection will say why
  }
}
