/**
 * A client's side of a connection, without a socket: octets in, events out; commands in, octets out.
 *
 * The server answers commands in their order. So a session knows for each frame, and for each Error, which command it
 * answers, or whether it reports something else. The user of a session attaches a token to each command that has an
 * answer; the event of the answer has the token.
 */

import { ProtocolError } from "./errors.js";
import { FrameDecoder, Type, readBlocks, readMessage, readNumber, readTopic, readTopics } from "./frames.js";
import { checkTopic, decodeName, encodeName } from "./names.js";
import { line, parse, readAtom } from "./sexp.js";
import { readRecords, readStatistics } from "./statistics.js";

/**
 * @typedef {import("./sexp.js").Written | import("./sexp.js").Bare} Part
 * @typedef {object} Gone  messages of a subscription or of a Fetch that are not available; it continues after them
 * @property {"Subscribe" | "Fetch"} constructor
 * @property {string} topic
 * @property {bigint} first
 * @property {bigint} last
 * @property {string} reason
 *
 * @typedef {{kind: "accepted"}} Accepted  the server speaks this version
 * @typedef {{kind: "answered", token: any, value: any}} Answered
 * @typedef {{kind: "refused", token: any, sentence: string}} RefusedEvent
 * @typedef {{kind: "message"} & import("./frames.js").Delivery} Delivered
 * @typedef {{kind: "block", token: any, octets: Uint8Array}} BlockFetched
 * @typedef {{kind: "gone", token: any, gone: Gone}} GoneEvent
 * @typedef {{kind: "ended", topic: import("./frames.js").Topic}} Ended  its topic was deleted
 * @typedef {{kind: "statistics", value: any}} Statistics
 * @typedef {{kind: "told", constructor: string, argument: string | undefined, sentence: string}} Told
 *   an Error that answers no waiting command: about a Publish, or why the server closes the connection
 * @typedef {Accepted | Answered | RefusedEvent | Delivered | BlockFetched | GoneEvent | Ended | Statistics | Told} Event
 */

const VERSION = Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 1);

const SENTENCE = /^([A-Z][a-z_]*)(?: ("(?:[^"\\]|\\[^])*"|[^" ]\S*?))?: /;
const UNKNOWN = /^Unknown command ([A-Z][a-z_]*)$/;
const GONE = /^messages ([0-9]+) to ([0-9]+) are gone: ([^]*)$/;

const text = new TextDecoder("utf-8");

/**
 * The frame that answers each command, and how it is read.
 * @type {Record<string, [type: number, read: (payload: Uint8Array) => any]>}
 */
const ANSWERS = {
  Subscribe: [Type.SUBSCRIBED, readTopic],
  Unsubscribe: [Type.UNSUBSCRIBED, readTopic],
  Declare: [Type.DECLARED, readTopic],
  Delete: [Type.DELETED, readTopic],
  Confirm: [Type.CONFIRMED, readNumber],
  Topics: [Type.TOPICS, readTopics],
  Blocks: [Type.BLOCKS, readBlocks],
  Manage: [Type.MANAGED, parse],
  Connections: [Type.CONNECTIONS, readRecords],
  Subscribers: [Type.SUBSCRIBERS, readRecords],
  Disconnect: [Type.DONE, readNumber],
  Purge: [Type.DONE, readNumber],
  Retain: [Type.DONE, readNumber],
};

/** The commands whose first argument is the name of a topic. */
const OF_TOPIC = new Set([
  "Publish", "Subscribe", "Unsubscribe", "Request", "Received", "Declare", "Delete", "Blocks", "Fetch", "Subscribers",
  "Purge", "Retain",
]);

/** @type {Set<number>} */
const KNOWN = new Set(Object.values(Type));

/** A connection's state, without a socket. */
export class Session {
  #decoder = new FrameDecoder();
  #greeting = new Uint8Array(0);
  /** @type {Uint8Array[]} */
  #output = [];
  /** @type {{constructor: string, argument: string | undefined, token: any}[]} */
  #expected = [];
  /** @type {{topic: string, token: any}[]} */
  #fetches = [];

  /** @param {string} id  the client's id; where the server has configured clients, `name:secret` */
  constructor(id) {
    this.#output.push(VERSION);
    this.say("Connect", 1, id);
  }

  /** The octets to send now. */
  takeOutput() {
    const size = this.#output.reduce((sum, each) => sum + each.length, 0);
    const octets = new Uint8Array(size);
    let at = 0;
    for (const each of this.#output) {
      octets.set(each, at);
      at += each.length;
    }
    this.#output = [];
    return octets;
  }

  /**
   * Send a command that has no answer except Errors. Returns the length of its line. Throws RangeError for a name that
   * no topic can have, and sends nothing then.
   *
   * @param {string} constructor
   * @param {Part[]} parts
   */
  say(constructor, ...parts) {
    if (OF_TOPIC.has(constructor)) checkTopic(/** @type {string | Uint8Array} */ (parts[0]));
    const octets = line(constructor, /** @type {any} */ (parts));
    this.#output.push(octets);
    return octets.length;
  }

  /**
   * Send a command that has an answer.
   *
   * @param {any} token
   * @param {string} constructor
   * @param {Part[]} parts
   */
  ask(token, constructor, ...parts) {
    const [first] = parts;
    const argument = ["string", "number", "bigint"].includes(typeof first) ? String(first) : undefined;
    this.say(constructor, ...parts);
    if (constructor === "Fetch") this.#fetches.push({ topic: String(first), token });
    else this.#expected.push({ constructor, argument, token });
  }

  /** Note that the oldest Fetch is complete: a block without messages has come. */
  endFetch() {
    this.#fetches.shift();
  }

  /** Forget the commands that wait for answers and return their tokens: the connection has ended. */
  abandon() {
    const tokens = [...this.#expected, ...this.#fetches].map((each) => each.token);
    this.#expected = [];
    this.#fetches = [];
    return tokens;
  }

  /**
   * Process octets of the server. Payloads of events are valid until the next call.
   *
   * @param {Uint8Array} octets
   * @returns {Generator<Event>}
   */
  *receive(octets) {
    let rest = octets;
    if (this.#greeting.length < VERSION.length) {
      const taken = rest.subarray(0, VERSION.length - this.#greeting.length);
      rest = rest.subarray(taken.length);
      this.#greeting = Uint8Array.of(...this.#greeting, ...taken);
      if (this.#greeting.length < VERSION.length) return;
      if (this.#greeting.some((octet, at) => octet !== VERSION[at])) {
        throw new ProtocolError("it is no omq server of version one");
      }
      yield { kind: "accepted" };
    }
    for (const { type, payload } of this.#decoder.push(rest)) {
      const event = this.#event(type, payload);
      if (event) yield event;
    }
  }

  /**
   * @param {number} type
   * @param {Uint8Array} payload
   * @returns {Event | undefined}
   */
  #event(type, payload) {
    switch (type) {
      case Type.MESSAGE:
        return { kind: "message", ...readMessage(payload) };
      case Type.PING:
        this.say("Ack", new Date().toISOString());
        return undefined;
      case Type.STATISTICS:
        return { kind: "statistics", value: readStatistics(payload) };
      case Type.ERROR:
        return this.#error(text.decode(payload));
      case Type.BLOCK:
        if (!this.#fetches.length) throw new ProtocolError("the server sent a block that nobody fetched");
        return { kind: "block", token: this.#fetches[0].token, octets: payload };
      default:
        return this.#answer(type, payload);
    }
  }

  /**
   * @param {number} type
   * @param {Uint8Array} payload
   * @returns {Event | undefined}
   */
  #answer(type, payload) {
    const expected = this.#expected[0];
    const [answer, read] = (expected && ANSWERS[expected.constructor]) ?? [];
    if (type === answer && read) {
      const value = read(payload);
      // A topic may be deleted while another command waits; then its name, or the next answer, tells which it is.
      if (type !== Type.UNSUBSCRIBED || value.topic === expected.argument) {
        this.#expected.shift();
        return { kind: "answered", token: expected.token, value };
      }
    }
    if (type === Type.UNSUBSCRIBED) return { kind: "ended", topic: readTopic(payload) };
    if (KNOWN.has(type)) throw new ProtocolError(`the server answered what was not asked: ${type}`);
    return undefined; // a type of a later server, which can be skipped by its length
  }

  /**
   * @param {string} sentence
   * @returns {Event}
   */
  #error(sentence) {
    const match = SENTENCE.exec(sentence) ?? UNKNOWN.exec(sentence); // an older server does not know all commands
    if (!match) return { kind: "told", constructor: "", argument: undefined, sentence };
    const constructor = match[1];
    const argument = match[2] === undefined ? undefined : readAtom(match[2]);
    const gone = GONE.exec(sentence.slice(match[0].length));
    const fetch = this.#fetches[0];
    if (gone && argument !== undefined && (constructor === "Subscribe" || constructor === "Fetch")) {
      const [, first, last, reason] = gone;
      const value = /** @type {Gone} */ ({ constructor, topic: argument, first: BigInt(first), last: BigInt(last), reason });
      return { kind: "gone", token: constructor === "Fetch" ? fetch?.token : undefined, gone: value };
    }
    if (fetch && constructor === "Fetch" && isAbout(argument, fetch.topic)) {
      this.#fetches.shift();
      return { kind: "refused", token: fetch.token, sentence };
    }
    const expected = this.#expected[0];
    if (expected?.constructor === constructor && isAbout(argument, expected.argument)) {
      this.#expected.shift();
      return { kind: "refused", token: expected.token, sentence };
    }
    return { kind: "told", constructor, argument, sentence };
  }
}

/** The octets of the longest argument that a sentence has in full; a longer one is cut, and ends in `...`. */
const LONGEST_ARGUMENT = 255;

/**
 * Whether a sentence with this argument may answer a command with that one.
 *
 * @param {string | undefined} printed
 * @param {string | undefined} argument
 */
function isAbout(printed, argument) {
  if (printed === undefined || argument === undefined || printed === argument) return true;
  const octets = encodeName(argument);
  if (octets.length <= LONGEST_ARGUMENT) return false;
  return printed === decodeName(octets.subarray(0, LONGEST_ARGUMENT - 3)) + "...";
}

/**
 * A name as a session compares it: a string.
 *
 * @param {string | Uint8Array} name
 */
export function nameOf(name) {
  return typeof name === "string" ? name : decodeName(encodeName(name));
}
