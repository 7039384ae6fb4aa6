/**
 * Heads: the exchange, the routing key and the properties of a message (docs/PROTOCOL.md, "Envelopes").
 */

import { ProtocolError } from "./errors.js";
import { decodeName } from "./names.js";

/**
 * @typedef {null | boolean | number | bigint | string | Uint8Array | Date | any[] | {[name: string]: any}} Value  arrays and tables
 *   have such values
 * @typedef {{exchange: string, key: string, properties: {[name: string]: Value}}} Head
 */

/** @type {[flag: number, name: string, read: (reader: Reader) => Value][]} */
const PROPERTIES = [
  [0x8000, "content-type", (reader) => reader.shortString()],
  [0x4000, "content-encoding", (reader) => reader.shortString()],
  [0x2000, "headers", (reader) => reader.table(0)],
  [0x1000, "delivery-mode", (reader) => reader.u8()],
  [0x0800, "priority", (reader) => reader.u8()],
  [0x0400, "correlation-id", (reader) => reader.shortString()],
  [0x0200, "reply-to", (reader) => reader.shortString()],
  [0x0100, "expiration", (reader) => reader.shortString()],
  [0x0080, "message-id", (reader) => reader.shortString()],
  [0x0040, "timestamp", (reader) => reader.u64()],
  [0x0020, "type", (reader) => reader.shortString()],
  [0x0010, "user-id", (reader) => reader.shortString()],
  [0x0008, "app-id", (reader) => reader.shortString()],
  [0x0004, "sender-id", (reader) => reader.shortString()],
];

const MAX_DEPTH = 32;

/**
 * Read a head. An empty one belongs to a message that came without exchange, key and properties.
 *
 * @param {Uint8Array} octets
 * @returns {Head}
 */
export function decodeHead(octets) {
  if (!octets.length) return { exchange: "", key: "", properties: {} };
  try {
    const reader = new Reader(octets);
    const exchange = reader.shortString();
    const key = reader.shortString();
    const flags = reader.u16();
    /** @type {{[name: string]: Value}} */
    const properties = Object.create(null);
    for (const [flag, name, read] of PROPERTIES) if (flags & flag) properties[name] = read(reader);
    if (flags & 3 || reader.at !== octets.length) throw new RangeError();
    return { exchange, key, properties };
  } catch (error) {
    if (error instanceof RangeError) throw new ProtocolError("a message has properties that cannot be read");
    throw error;
  }
}

/** Reads fields; a field beyond the end is a RangeError. */
class Reader {
  /** @param {Uint8Array} octets */
  constructor(octets) {
    this.octets = octets;
    this.view = new DataView(octets.buffer, octets.byteOffset, octets.byteLength);
    this.at = 0;
  }

  /** @param {number} size */
  skip(size) {
    const at = this.at;
    if (at + size > this.octets.length) throw new RangeError();
    this.at += size;
    return at;
  }

  u8() {
    return this.view.getUint8(this.skip(1));
  }
  u16() {
    return this.view.getUint16(this.skip(2));
  }
  u32() {
    return this.view.getUint32(this.skip(4));
  }
  u64() {
    return this.view.getBigUint64(this.skip(8));
  }

  /** @param {number} size */
  take(size) {
    const at = this.skip(size);
    return this.octets.slice(at, at + size);
  }

  shortString() {
    return decodeName(this.take(this.u8()));
  }

  /** @param {number} depth */
  table(depth) {
    /** @type {{[name: string]: Value}} */
    const table = Object.create(null);
    const end = this.inner(depth);
    while (this.at < end) {
      const name = this.shortString();
      table[name] = this.value(depth);
    }
    if (this.at !== end) throw new RangeError();
    return table;
  }

  /** @param {number} depth */
  array(depth) {
    /** @type {Value[]} */
    const array = [];
    const end = this.inner(depth);
    while (this.at < end) array.push(this.value(depth));
    if (this.at !== end) throw new RangeError();
    return array;
  }

  /** @param {number} depth */
  inner(depth) {
    const end = this.u32() + this.at;
    if (depth >= MAX_DEPTH || end > this.octets.length) throw new RangeError();
    return end;
  }

  /**
   * @param {number} depth
   * @returns {Value}
   */
  value(depth) {
    switch (String.fromCharCode(this.u8())) {
      case "S":
        return decodeName(this.take(this.u32()));
      case "x":
        return this.take(this.u32());
      case "I":
        return this.view.getInt32(this.skip(4));
      case "i":
        return this.u32();
      case "D": {
        const scale = this.u8();
        return this.view.getInt32(this.skip(4)) / 10 ** scale;
      }
      case "T":
        return new Date(Number(this.u64()) * 1000);
      case "F":
        return this.table(depth + 1);
      case "A":
        return this.array(depth + 1);
      case "t":
        return this.u8() !== 0;
      case "b":
        return this.view.getInt8(this.skip(1));
      case "B":
        return this.u8();
      case "s":
      case "U":
        return this.view.getInt16(this.skip(2));
      case "u":
        return this.u16();
      case "l":
      case "L":
        return this.view.getBigInt64(this.skip(8));
      case "f":
        return this.view.getFloat32(this.skip(4));
      case "d":
        return this.view.getFloat64(this.skip(8));
      case "V":
        return null;
      default:
        throw new RangeError();
    }
  }
}
