/** Stored blocks, as the answer to Fetch has them (docs/PROTOCOL.md, "Fetch and Blocks"). */

import { OmqError } from "./errors.js";
import { decodeHead } from "./heads.js";
import { Message } from "./messages.js";

/** A block whose checksum or layout is wrong, or of a format that this client does not know. */
export class BrokenBlock extends OmqError {}

const MAGIC = 0x6f6d7142;
const HEADER = 48;
const FRAME_HEADER = 17;
const [DELTAS, HEADS] = [1, 2];

const TABLE = Uint32Array.from({ length: 256 }, (_, octet) => {
  let value = octet;
  for (let bit = 0; bit < 8; bit++) value = (value >>> 1) ^ (value & 1 ? 0x82f63b78 : 0);
  return value >>> 0;
});

/**
 * CRC-32C of the octets from `from` on.
 *
 * @param {Uint8Array} octets
 * @param {number} [state]
 */
function crc(octets, state = 0xffffffff) {
  for (let at = 0; at < octets.length; at++) state = TABLE[(state ^ octets[at]) & 255] ^ (state >>> 8);
  return state;
}

/**
 * Check a block and read its messages.
 *
 * @param {Uint8Array} octets  the payload of a Block frame
 * @returns {{topicId: number, first: bigint, messages: Message[]}}
 */
export function decodeBlock(octets) {
  if (octets.length < HEADER + 4) throw new BrokenBlock("the block is too short");
  const view = new DataView(octets.buffer, octets.byteOffset, octets.byteLength);
  if (view.getUint32(0) !== MAGIC) throw new BrokenBlock("it is no block");
  if (view.getUint8(4) !== 1) throw new BrokenBlock("the block has another format");
  const flags = view.getUint8(5);
  if (flags & ~(DELTAS | HEADS)) throw new BrokenBlock("the block has unknown flags");
  const sum = ~crc(octets.subarray(12), crc(octets.subarray(0, 8))) >>> 0;
  if (sum !== view.getUint32(8)) throw new BrokenBlock("the block's checksum is wrong");
  const first = view.getBigUint64(16);
  const time = Number(view.getBigUint64(24));
  const count = view.getUint32(32);
  const size = view.getUint32(36);
  const headsSize = Number(view.getBigUint64(40));
  const offsetsAt = HEADER;
  const deltasAt = offsetsAt + 4 * (count + 1);
  const headOffsetsAt = deltasAt + (flags & DELTAS ? 4 * count : 0);
  const framesAt = headOffsetsAt + (flags & HEADS ? 4 * (count + 1) : 0);
  const headsAt = framesAt + size;
  if (headsAt + headsSize !== octets.length) throw new BrokenBlock("the block's length is wrong");
  /**
   * @param {number} at
   * @param {number} index
   * @param {number} size
   * @param {number} least
   */
  const span = (at, index, size, least) => {
    const begin = view.getUint32(at + 4 * index, true);
    const end = view.getUint32(at + 4 * index + 4, true);
    if (end > size || end - begin < least) throw new BrokenBlock("the block's offsets are wrong");
    return [begin, end];
  };
  const topicId = view.getUint32(12);
  /** @type {Message[]} */
  const messages = [];
  for (let index = 0; index < count; index++) {
    const [begin, end] = span(offsetsAt, index, size, FRAME_HEADER);
    const body = octets.slice(framesAt + begin + FRAME_HEADER, framesAt + end);
    const message = new Message(first + BigInt(index), body);
    message.time = time + (flags & DELTAS ? view.getUint32(deltasAt + 4 * index, true) : 0);
    if (flags & HEADS) {
      const [from, to] = span(headOffsetsAt, index, headsSize, 0);
      message.head = decodeHead(octets.subarray(headsAt + from, headsAt + to));
    } else {
      message.head = decodeHead(octets.subarray(0, 0));
    }
    messages.push(message);
  }
  return { topicId, first, messages };
}
