/**
 * The client in Node: the same, and connections by TCP and TLS without a WebSocket.
 *
 * @module
 */

import net from "node:net";
import tls from "node:tls";

import { Client } from "./lib/client.js";
import { ConnectionLost } from "./lib/errors.js";

export * from "./omq.js";

const DEFAULT_PORT = 7730;

/** The seconds in which a connection that is closed tries to send what is left. */
const FINISH_SECONDS = 10;

/**
 * Connect to a server by TCP, or by TLS.
 *
 * @param {string} url  `omq://host:port`, or `omqs://host:port` with TLS
 * @param {import("./lib/client.js").Options & {tls?: import("node:tls").ConnectionOptions}} [options]
 *   `tls`: options of Node's TLS, such as `ca`
 */
export async function connectTcp(url, options = {}) {
  return Client.open((handlers) => openSocket(url, handlers, options), options);
}

/**
 * @param {string} url
 * @param {import("./lib/websocket.js").Handlers} handlers
 * @param {{signal?: AbortSignal, tls?: import("node:tls").ConnectionOptions}} options
 * @returns {Promise<import("./lib/websocket.js").Transport>}
 */
function openSocket(url, handlers, options) {
  const { host, port, secure } = parse(url);
  return new Promise((resolve, reject) => {
    options.signal?.throwIfAborted();
    const socket = secure
      ? tls.connect({ host, port, servername: net.isIP(host) ? "" : host, ...options.tls })
      : net.connect({ host, port });
    socket.setNoDelay(true);
    let why = "the server closed the connection";
    const abort = () => socket.destroy();
    options.signal?.addEventListener("abort", abort, { once: true });
    const refuse = () => reject(options.signal?.aborted ? options.signal.reason : new ConnectionLost(why));
    socket.on("error", (error) => (why = error.message));
    socket.once("close", refuse);
    socket.once(secure ? "secureConnect" : "connect", () => {
      options.signal?.removeEventListener("abort", abort);
      socket.off("close", refuse);
      socket.once("close", () => handlers.closed(why));
      // Of a Buffer, `slice` would be a view instead of a copy.
      socket.on("data", ({ buffer, byteOffset, length }) => handlers.data(new Uint8Array(buffer, byteOffset, length)));
      resolve({
        write: (octets) => void socket.write(octets),
        unsent: () => socket.writableLength,
        close() {
          // A network that takes nothing more would keep the socket, and with it the process.
          const late = setTimeout(() => socket.destroy(), FINISH_SECONDS * 1000);
          socket.once("close", () => clearTimeout(late));
          socket.end(() => socket.destroySoon());
        },
        abort: () => void socket.destroy(),
      });
    });
  });
}

/** @param {string} url */
function parse(url) {
  const match = /^(omqs?):\/\/(?:\[([0-9A-Fa-f:.]+)\]|([^:/@[\]]+))(?::([0-9]{1,5}))?\/?$/.exec(url);
  const port = Number(match?.[4] ?? DEFAULT_PORT);
  if (!match || port > 65535) throw new TypeError("an address has the form omq://HOST:PORT or omqs://HOST:PORT");
  return { host: match[2] ?? match[3], port, secure: match[1] === "omqs" };
}
