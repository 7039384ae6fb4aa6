/**
 * The context that a page gets, and the interface of a page.
 *
 * @typedef {object} Context
 * @property {import("./store.js").Store} store
 * @property {import("./link.js").Link} link
 * @property {() => import("../client/omq.js").Client | undefined} client  the client that is connected now
 * @property {() => import("../client/omq.js").Client} connected  the same; throws OmqError if there is none
 *
 * @typedef {object} View
 * @property {HTMLElement} element
 * @property {() => void} [update]  called after each round of statistics
 * @property {() => void} [reconnected]  called before `update` with the first round of each new connection
 * @property {() => void} [close]
 */

/**
 * The path of a topic's page: its octets, escaped.
 *
 * @param {Uint8Array} octets
 */
export function pathOf(octets) {
  return `#/topics/${Array.from(octets, (octet) =>
    /[A-Za-z0-9._~-]/.test(String.fromCharCode(octet)) ? String.fromCharCode(octet) : `%${octet.toString(16).padStart(2, "0")}`,
  ).join("")}`;
}

/**
 * @param {string} path  what stands after `#/topics/`
 * @returns {Uint8Array}
 */
export function octetsOf(path) {
  const octets = [];
  for (let at = 0; at < path.length; at++) {
    if (path[at] === "%") {
      octets.push(parseInt(path.slice(at + 1, at + 3), 16) || 0);
      at += 2;
    } else {
      octets.push(path.charCodeAt(at) & 255);
    }
  }
  return Uint8Array.from(octets);
}
