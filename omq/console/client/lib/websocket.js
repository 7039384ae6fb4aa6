/** A connection by WebSocket, to the server's `/ws`. */

import { ConnectionLost } from "./errors.js";

/**
 * @typedef {object} Handlers
 * @property {(octets: Uint8Array) => void} data
 * @property {(why: string) => void} closed  called once, at the end of the connection
 *
 * @typedef {object} Transport  a connection, as a client uses it
 * @property {(octets: Uint8Array) => void} write
 * @property {() => number} unsent  octets that were written and not sent yet
 * @property {() => void} close  send what was written, then close
 * @property {() => void} abort  close at once
 *
 * @typedef {object} WebSocketLike  what is used of a WebSocket
 * @property {string} binaryType
 * @property {number} bufferedAmount
 * @property {((event: any) => any) | null} onopen
 * @property {((event: any) => any) | null} onmessage
 * @property {((event: any) => any) | null} onclose
 * @property {((event: any) => any) | null} onerror
 * @property {(octets: Uint8Array) => void} send
 * @property {(code?: number) => void} close
 * @typedef {new (url: string | URL) => WebSocketLike} WebSocketConstructor
 */

const MAX_PIECE = 64 * 1024;

/**
 * @param {string | URL} url  `ws://host:port/ws` or `wss://host:port/ws`
 * @param {Handlers} handlers
 * @param {{signal?: AbortSignal, WebSocket?: WebSocketConstructor}} [options]
 * @returns {Promise<Transport>} when the connection is open
 */
export function openWebSocket(url, handlers, { signal, WebSocket = /** @type {any} */ (globalThis).WebSocket } = {}) {
  if (!WebSocket) throw new TypeError("there is no WebSocket here: pass one as an option, or use connectTcp in Node");
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    let opened = false;
    let over = false;
    /** @param {string} why */
    const end = (why) => {
      if (over) return;
      over = true;
      signal?.removeEventListener("abort", abort);
      if (opened) handlers.closed(why);
      else reject(signal?.aborted ? signal.reason : new ConnectionLost(why));
    };
    const abort = () => {
      socket.close();
      end("the connection was given up");
    };
    signal?.addEventListener("abort", abort, { once: true });
    socket.onmessage = ({ data }) => over || handlers.data(new Uint8Array(data));
    const unexplained = () => (opened ? "the connection was closed" : "the server could not be reached");
    socket.onclose = ({ reason }) => end(reason || unexplained());
    // A close event with the reason follows at once. But Node's WebSocket sends none before the connection is open.
    socket.onerror = () => void setTimeout(() => end(unexplained()), 0);
    socket.onopen = () => {
      opened = true;
      signal?.removeEventListener("abort", abort);
      resolve({
        write(octets) {
          if (over) return;
          // A WebSocket's messages are an octet stream here. Short ones keep within the server's bound on messages.
          for (let at = 0; at < octets.length; at += MAX_PIECE) socket.send(octets.subarray(at, at + MAX_PIECE));
        },
        unsent: () => socket.bufferedAmount,
        close: () => socket.close(1000),
        abort() {
          socket.close();
          end("the connection was given up"); // a broken network would delay the close event
        },
      });
    };
  });
}
