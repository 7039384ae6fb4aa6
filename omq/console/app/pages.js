/** Pages of stored messages, one after another in both directions, however many ids between them have no message. */

import { OmqError } from "../client/omq.js";
import { SHOWN } from "./bodies.js";

/** The number of messages of a page. */
export const PAGE = 50;
/** A page of longer messages has fewer of them. */
export const PAGE_OCTETS = 8 * 2 ** 20;
/** The number of messages that are fetched at a time if they are long, with their whole bodies. */
const STEP = 5;
/** The number of ranges without messages that one page passes. */
const MOST_GAPS = 20;
/** The most blocks in an answer to Blocks. */
const MOST_BLOCKS = 4096;
/** The most messages of a queue that are looked at for one range. */
const MOST_PEEKED = 100;

/**
 * @typedef {import("./messages.js").Shown} Shown
 *
 * @typedef {object} Gap  ids without messages
 * @property {bigint} first
 * @property {bigint} last
 * @property {string} reason
 *
 * @typedef {object} PageOfMessages
 * @property {Shown[]} messages
 * @property {bigint} end  where the next page begins
 * @property {Gap[]} gaps
 * @property {boolean} isCut  whether it has fewer messages because they are long
 *
 * @typedef {object} Span  messages with consecutive ids
 * @property {bigint} first
 * @property {number} count
 * @property {number} octets  some more than their bodies have
 *
 * @typedef {object} Spans
 * @property {Span[]} spans  the messages of a range, in the order of their ids
 * @property {boolean} isWhole  whether these are all of them
 *
 * @typedef {object} Source  the messages of a topic
 * @property {(first: bigint, newest: bigint) => Promise<PageOfMessages>} page  reads a page, from an id on
 * @property {(first: bigint, end: bigint) => Promise<Spans>} spans  finds the messages of a range, without their bodies
 */

/**
 * The messages of a queue.
 *
 * @param {import("../client/omq.js").Client} client
 * @param {string} name
 * @returns {Source}
 */
export function queueSource(client, name) {
  return {
    async page(first) {
      const messages = (await peekedMessages(client, name, first, PAGE)).map(peeked);
      return { messages, end: messages.length ? messages[messages.length - 1].id + 1n : first, gaps: [], isCut: false };
    },
    async spans(first, end) {
      const found = await peekedMessages(client, name, first, MOST_PEEKED);
      const within = found.filter(({ id }) => id < end);
      return { spans: within.map(({ id, body }) => ({ first: id, count: 1, octets: body.length })), isWhole: within.length < MOST_PEEKED };
    },
  };
}

/**
 * Show messages of a queue: an answer has fewer of long ones.
 *
 * @param {import("../client/omq.js").Client} client
 * @param {string} name
 * @param {bigint} first
 * @param {number} count
 */
async function peekedMessages(client, name, first, count) {
  const messages = await client.peek(name, { first, count });
  while (messages.length && messages.length < count) {
    const more = await client.peek(name, { first: messages[messages.length - 1].id + 1n, count: count - messages.length });
    if (!more.length) break;
    messages.push(...more);
  }
  return messages;
}

/**
 * The messages of a persistent broadcast topic.
 *
 * @param {import("../client/omq.js").Client} client
 * @param {string} name
 * @returns {Source}
 */
export function storedSource(client, name) {
  return {
    page: (first, newest) => fetched(client, name, first, newest),
    async spans(first, end) {
      const blocks = await client.blocks(name, first, end - first);
      /** @type {Span[]} */
      const spans = [];
      let next = first;
      for (const block of blocks) {
        // A block may have messages of the range before, and of the block before it.
        const [begin, after] = [block.first > next ? block.first : next, block.first + BigInt(block.count)];
        next = after < end ? after : end;
        const count = Number(next - begin);
        if (count > 0) spans.push({ first: begin, count, octets: (block.bytes * count) / block.count });
      }
      return { spans, isWhole: blocks.length < MOST_BLOCKS };
    },
  };
}

/**
 * Read a page. Of long bodies only the beginnings are kept.
 *
 * @param {import("../client/omq.js").Client} client
 * @param {string} name
 * @param {bigint} first
 * @param {bigint} newest
 * @returns {Promise<PageOfMessages>}
 */
async function fetched(client, name, first, newest) {
  /** @type {Shown[]} */
  const messages = [];
  /** @type {Gap[]} */
  const gaps = [];
  let octets = 0;
  let passed = 0;
  let end = first;
  while (end <= newest && messages.length < PAGE && octets < PAGE_OCTETS) {
    const wanted = PAGE - messages.length;
    const stored = await client.blocks(name, end, wanted);
    const isLong = stored.reduce((sum, block) => sum + block.bytes, 0) > PAGE_OCTETS;
    const bound = end + BigInt(wanted);
    const before = messages.length;
    while (end < bound && octets < PAGE_OCTETS) {
      const count = isLong ? Math.min(STEP, Number(bound - end)) : Number(bound - end);
      for await (const message of client.fetch(name, { first: end, count, onGone: (gap) => joined(gaps, gap) })) {
        octets += message.body.length;
        messages.push({ ...message, body: message.body.slice(0, SHOWN), size: message.body.length });
      }
      end += BigInt(count);
    }
    if (messages.length > before || end > newest) continue;
    // Many ids in a row may have no message, such as those that a restored backup skips.
    if (++passed > MOST_GAPS) break;
    const [block] = await client.blocks(name, end, newest - end + 1n);
    const next = block ? block.first : newest + 1n;
    if (next <= end) continue;
    for await (const message of client.fetch(name, { first: end, count: next - end, onGone: (gap) => joined(gaps, gap) })) {
      throw new OmqError(`message ${message.id} was not listed`);
    }
    end = next;
  }
  return { messages, end, gaps, isCut: octets >= PAGE_OCTETS && messages.length < PAGE };
}

/**
 * Note a gap; one that continues the last one makes it longer.
 *
 * @param {Gap[]} gaps
 * @param {Gap} gap
 */
function joined(gaps, { first, last, reason }) {
  const before = gaps[gaps.length - 1];
  if (before && before.last === first - 1n && before.reason === reason) before.last = last;
  else gaps.push({ first, last, reason });
}

/** @param {{id: bigint, size: number, body: Uint8Array, exchange: string, key: string}} message */
function peeked({ id, size, body, exchange, key }) {
  return { id, size, body, head: { exchange, key, properties: {} } };
}

/**
 * Return the id with which the page begins that ends before `end`.
 *
 * @param {Source} source
 * @param {bigint} end
 * @param {bigint} oldest
 * @returns {Promise<bigint>}
 */
export async function startBefore(source, end, oldest) {
  let start = end - BigInt(PAGE);
  /** An id from which on there are too many messages to list, if one is known. @type {bigint | undefined} */
  let low;
  /** An id from which on there are too few messages for a page. */
  let high = end;
  for (;;) {
    if (start < oldest) start = oldest;
    const { spans, isWhole } = await source.spans(start, end);
    const number = spans.reduce((sum, { count }) => sum + count, 0);
    if (isWhole && (number >= PAGE || start <= oldest)) return lastOf(spans) ?? start;
    if (isWhole) high = start;
    else low = start;
    if (low === undefined) start = end - 2n * (end - start);
    else if (high - low > 1n) start = (low + high) / 2n;
    else return low; // messages have been deleted meanwhile
  }
}

/**
 * Return the id of the first of the last messages, as many as a page has; undefined if there are none.
 *
 * @param {Span[]} spans
 * @returns {bigint | undefined}
 */
function lastOf(spans) {
  let [missing, room] = [PAGE, PAGE_OCTETS];
  let begin;
  for (const { first, count, octets } of [...spans].reverse()) {
    const taken = Math.min(count, missing, Math.floor((room * count) / Math.max(1, octets)));
    if (taken || begin === undefined) begin = first + BigInt(count - Math.max(1, taken));
    if (taken < count) break;
    missing -= count;
    room -= octets;
  }
  return begin;
}
