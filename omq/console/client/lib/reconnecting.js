/** Keeps a client connected. */

import { ConnectionLost, OmqError } from "./errors.js";

/**
 * @typedef {import("./client.js").Client} Client
 * @typedef {{state: "connecting" | "connected"} | {state: "lost", why: OmqError, seconds: number}} LinkState
 */

/**
 * Connect, and connect again whenever the connection is lost, until `signal` is aborted.
 *
 * `use` is called with each new client; there, subscribe again, from `subscription.next` on. When it returns or throws,
 * the client stays connected: it ends with its connection. ConnectionLost that `use` throws is ignored, because
 * `onState` gets the reason. The pauses between attempts double from 0.25 s to `longest`.
 *
 * @param {(signal: AbortSignal) => Promise<Client>} open  makes a client, as `connect` does
 * @param {object} hooks
 * @param {(client: Client) => unknown} hooks.use
 * @param {(state: LinkState) => void} [hooks.onState]
 * @param {(error: unknown) => boolean} [hooks.isFinal]  whether another attempt is useless, such as after a wrong
 *   secret: then the error is thrown
 * @param {(error: unknown) => void} [hooks.onError]  called with any other exception of `use`; by default it is written
 *   to the console
 * @param {AbortSignal} hooks.signal
 * @param {number} [hooks.longest]  seconds; 10 by default
 */
export async function keepConnected(
  open,
  { use, onState = () => {}, isFinal = () => false, onError = console.error, signal, longest = 10 },
) {
  let seconds = 0.25;
  while (!signal.aborted) {
    onState({ state: "connecting" });
    /** @type {OmqError} */
    let why;
    try {
      const client = await open(signal);
      const close = () => void client.close();
      signal.addEventListener("abort", close, { once: true });
      try {
        if (signal.aborted) return; // `open` may do more than connect, and not look at the signal meanwhile
        seconds = 0.25;
        onState({ state: "connected" });
        // Without a handler, a rejection of `use` ends a Node process.
        (async () => use(client))().catch((error) => error instanceof ConnectionLost || onError(error));
        why = (await client.closed) ?? new ConnectionLost("the connection was closed");
      } finally {
        signal.removeEventListener("abort", close);
        close();
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof OmqError) || isFinal(error)) throw error;
      why = error;
    }
    if (signal.aborted) return;
    onState({ state: "lost", why, seconds });
    await pause(seconds, signal);
    seconds = Math.min(longest, seconds * 2);
  }
}

/**
 * @param {number} seconds
 * @param {AbortSignal} signal
 */
function pause(seconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, seconds * 1000);
    signal.addEventListener("abort", done, { once: true });
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve(undefined);
    }
  });
}
