/** The answers to Watch, Connections and Subscribers (docs/PROTOCOL.md, "Watch and control"). */

import { ProtocolError } from "./errors.js";
import { readPersistence } from "./frames.js";
import { atom, list, messageId, number, parse, record } from "./sexp.js";

/** @typedef {import("./sexp.js").Sexp} Sexp */

/** @type {(sexp: Sexp) => any} */
const records = (sexp) => list(sexp).map(readRecord);

/**
 * The readers of the fields that are no numbers, by their names. A map, because the name of a field may be that of a
 * property which every object has, such as `constructor`.
 * @type {Map<string, (sexp: Sexp) => any>}
 */
const FIELDS = new Map(
  Object.entries({
    topic: atom,
    client: atom,
    peer: atom,
    protocol: atom,
    name: atom,
    level: atom,
    logger: atom,
    text: atom,
    version: atom,
    delivery: atom,
    persistence: readPersistence,
    first: messageId,
    last: messageId,
    encrypted: (sexp) => atom(sexp) === "true",
    position: option(messageId),
    credit: option(number),
    stalled: option(number),
    retention_octets: option(number),
    retention_ms: option(number),
    refusal: option(atom),
    slow: option(atom),
    memory: records,
    writers: records,
    protocols: records,
    furthest: records,
    list: records,
    ids: (sexp) => list(sexp).map(number),
  }),
);

/**
 * @template T
 * @param {(sexp: Sexp) => T} read
 * @returns {(sexp: Sexp) => T | null}
 */
function option(read) {
  return (sexp) => (list(sexp).length ? read(list(sexp)[0]) : null);
}

/** @type {Map<string, string>} */
const CAMEL = new Map();

/**
 * `messagesIn` of `messages_in`.
 *
 * @param {string} name
 */
function camel(name) {
  let found = CAMEL.get(name);
  if (found === undefined) {
    found = name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
    CAMEL.set(name, found);
  }
  return found;
}

/**
 * @param {Sexp} sexp
 * @returns {any}
 */
function readRecord(sexp) {
  /** @type {any} */
  const result = {};
  for (const [name, value] of Object.entries(record(sexp))) result[camel(name)] = (FIELDS.get(name) ?? number)(value);
  return result;
}

/**
 * One value of Watch: `kind` is its constructor, the other properties are its fields.
 *
 * @param {Uint8Array} payload
 */
export function readStatistics(payload) {
  const sexp = parse(payload);
  if (typeof sexp === "string") return { kind: sexp };
  const [kind, ...fields] = sexp;
  if (typeof kind !== "string") throw new ProtocolError("the server sent statistics that cannot be read");
  return { kind, ...readRecord(fields) };
}

/**
 * @param {Uint8Array} payload
 * @returns {any[]}
 */
export function readRecords(payload) {
  return records(parse(payload));
}
