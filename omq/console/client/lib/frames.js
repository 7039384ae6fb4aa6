/** Frames: a length, a type and a payload (docs/PROTOCOL.md, "What the server sends: frames"). */

import { ProtocolError } from "./errors.js";
import { Message } from "./messages.js";
import { atom, list, messageId, number, parse, record } from "./sexp.js";

/** The types of frames. */
export const Type = Object.freeze({
  ERROR: 0,
  PING: 1,
  MESSAGE: 2,
  SUBSCRIBED: 3,
  UNSUBSCRIBED: 4,
  DECLARED: 5,
  CONFIRMED: 6,
  LEASED: 7,
  BLOCK: 8,
  TOPICS: 9,
  DELETED: 10,
  BLOCKS: 11,
  MANAGED: 12,
  STATISTICS: 13,
  CONNECTIONS: 14,
  SUBSCRIBERS: 15,
  DONE: 16,
});

const LENGTH = 4;
const MESSAGE_HEADER = 12;

/** Longer frames than this are refused: the longest Block. */
const MAX_FRAME = 2 ** 31;

/** Divides octets into frames. */
export class FrameDecoder {
  #kept = new Uint8Array(0);
  #length = 0;

  /**
   * @param {Uint8Array} octets  the next octets of the connection
   * @returns {Generator<{type: number, payload: Uint8Array}>} payloads are views, valid until the next call
   */
  *push(octets) {
    let rest = octets;
    // A frame that began in earlier octets is completed first, in a buffer of its own.
    while (this.#length) {
      rest = rest.subarray(this.#fill(rest, LENGTH));
      if (this.#length < LENGTH) return;
      const size = LENGTH + lengthOf(this.#kept);
      rest = rest.subarray(this.#fill(rest, size));
      if (this.#length < size) return;
      const frame = this.#kept.subarray(0, size);
      this.#kept = new Uint8Array(0);
      this.#length = 0;
      yield split(frame);
    }
    while (rest.length >= LENGTH) {
      const size = LENGTH + lengthOf(rest);
      if (rest.length < size) break;
      yield split(rest.subarray(0, size));
      rest = rest.subarray(size);
    }
    if (rest.length) this.#fill(rest, rest.length);
  }

  /**
   * Keep octets until there are `wanted`; return how many were taken.
   *
   * @param {Uint8Array} octets
   * @param {number} wanted
   */
  #fill(octets, wanted) {
    const taken = Math.min(octets.length, Math.max(0, wanted - this.#length));
    if (this.#length + taken > this.#kept.length) {
      // The buffer doubles, so a long frame is not copied once for each read, nor is its length trusted at once.
      const larger = new Uint8Array(Math.min(wanted, Math.max(this.#length + taken, 2 * this.#kept.length)));
      larger.set(this.#kept.subarray(0, this.#length));
      this.#kept = larger;
    }
    this.#kept.set(octets.subarray(0, taken), this.#length);
    this.#length += taken;
    return taken;
  }
}

/** @param {Uint8Array} octets */
function lengthOf(octets) {
  const length = ((octets[0] << 24) | (octets[1] << 16) | (octets[2] << 8) | octets[3]) >>> 0;
  if (length < 1 || length > MAX_FRAME) throw new ProtocolError(`the server sent a frame of ${length} octets`);
  return length;
}

/** @param {Uint8Array} frame */
function split(frame) {
  return { type: frame[LENGTH], payload: frame.subarray(LENGTH + 1) };
}

/**
 * @typedef {{id: number, topic: string}} Topic
 * @typedef {{topicId: number, message: Message}} Delivery
 */

/**
 * @param {Uint8Array} payload
 * @returns {Delivery}
 */
export function readMessage(payload) {
  if (payload.length < MESSAGE_HEADER) throw new ProtocolError("the server sent a message that is too short");
  const view = new DataView(payload.buffer, payload.byteOffset, MESSAGE_HEADER);
  return { topicId: view.getUint32(8), message: new Message(view.getBigUint64(0), payload.slice(MESSAGE_HEADER)) };
}

/**
 * @param {Uint8Array} payload
 * @returns {Topic}
 */
export function readTopic(payload) {
  const { id, topic } = record(parse(payload));
  return { id: number(id), topic: atom(topic) };
}

/** @param {Uint8Array} payload */
export function readNumber(payload) {
  if (payload.length !== 8) throw new ProtocolError("the server sent a number that cannot be read");
  return new DataView(payload.buffer, payload.byteOffset, 8).getBigInt64(0);
}

/**
 * @typedef {"Broadcast" | "Round_robin"} DeliveryType
 * @typedef {"Strong" | "Weak" | "Async" | "Transient"} Persistence
 *   a sync level of a persistent topic, or Transient
 * @typedef {{id: number, topic: string, delivery: DeliveryType, persistence: Persistence, messages: number,
 *   bytes: number, first: bigint, last: bigint, subscribers: number}} TopicInfo
 * @typedef {{first: bigint, count: number, time: number, bytes: number}} BlockInfo  time in microseconds
 */

/**
 * @param {Uint8Array} payload
 * @returns {TopicInfo[]}
 */
export function readTopics(payload) {
  return list(parse(payload)).map((each) => {
    const fields = record(each);
    return {
      id: number(fields.id),
      topic: atom(fields.topic),
      delivery: /** @type {DeliveryType} */ (atom(fields.delivery)),
      persistence: readPersistence(fields.persistence),
      messages: number(fields.messages),
      bytes: number(fields.bytes),
      first: messageId(fields.first),
      last: messageId(fields.last),
      subscribers: number(fields.subscribers),
    };
  });
}

/**
 * @param {import("./sexp.js").Sexp} sexp  `Transient` or `(Persistent Weak)`
 * @returns {Persistence}
 */
export function readPersistence(sexp) {
  return /** @type {Persistence} */ (typeof sexp === "string" ? sexp : atom(sexp[1]));
}

/**
 * @param {Uint8Array} payload
 * @returns {BlockInfo[]}
 */
export function readBlocks(payload) {
  return list(parse(payload)).map((each) => {
    const fields = record(each);
    return {
      first: messageId(fields.first),
      count: number(fields.count),
      time: number(fields.time),
      bytes: number(fields.bytes),
    };
  });
}
