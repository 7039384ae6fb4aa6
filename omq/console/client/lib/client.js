/** A client: one connection to a server, with promises and async iterators. */

import { decodeBlock } from "./blocks.js";
import {
  AlreadyInUse, ConnectRefused, ConnectionLost, MessageTooLong, OmqError, ProtocolError, Refused, TopicDeleted,
} from "./errors.js";
import { checkTopic, encodeName, printable } from "./names.js";
import { Session, nameOf } from "./session.js";
import { Bare, atom, list, messageId, number, record } from "./sexp.js";
import { Subscription } from "./subscription.js";
import { Watcher } from "./watcher.js";
import { openWebSocket } from "./websocket.js";

/**
 * @typedef {import("./websocket.js").Handlers} Handlers
 * @typedef {import("./websocket.js").Transport} Transport
 * @typedef {import("./messages.js").Message} Message
 * @typedef {import("./frames.js").Persistence} Persistence
 * @typedef {import("./frames.js").TopicInfo} TopicInfo
 *
 * @typedef {object} Options
 * @property {string} [id]  who the client is: any name, or `name:secret` where the server has configured clients
 * @property {AbortSignal} [signal]  gives up an attempt to connect
 * @property {number} [silence]  seconds without any octet of the server after which the connection counts as lost;
 *   100 by default
 * @property {number} [maxLine]  the server's `max_line_bytes`; 1 MiB by default
 * @property {(sentence: string) => void} [onError]  Errors that answer no command, for example about a Publish
 * @property {import("./websocket.js").WebSocketConstructor} [WebSocket]  another implementation of WebSocket
 */

const UNSENT_LIMIT = 1024 * 1024;
const REFUSALS_KEPT = 100;
const FETCH_AT_ONCE = 1000;
const CANNOT_REPLAY = /cannot be replayed$/;

/**
 * Connect to a server by WebSocket.
 *
 * @param {string | URL} url  `ws://host:port/ws` or `wss://host:port/ws`
 * @param {Options} [options]
 * @returns {Promise<Client>} when the server has accepted the id
 */
export async function connect(url, options = {}) {
  return Client.open((handlers) => openWebSocket(url, handlers, options), options);
}

/**
 * @param {string} what  the argument
 * @param {unknown} value
 * @returns {bigint}
 */
function integer(what, value) {
  if (typeof value === "bigint") return value;
  if (!Number.isSafeInteger(value)) throw new TypeError(`${what} is a bigint or an integer, not ${value}`);
  return BigInt(/** @type {number} */ (value));
}

/**
 * Call a callback of the program. What it throws is written to the console: it must not get between the frames that
 * have come.
 *
 * @template T
 * @param {((value: T) => unknown) | undefined} callback
 * @param {T} value
 */
function tell(callback, value) {
  try {
    callback?.(value);
  } catch (error) {
    console.error(error);
  }
}

/** A connection to a server. Use `connect` to make one. */
export class Client {
  /** @type {Session} */
  #session;
  /** @type {Transport | undefined} */
  #transport;
  /** @type {Options} */
  #options;
  #flushing = false;
  #lastHeard = performance.now();
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #watchdog;
  /** @type {ConnectionLost | undefined} */
  #over;
  #lastSentence = "";
  #isRefused = false;
  #confirms = 0n;
  /** The confirms in flight. @type {Set<{refused?: Refused}>} */
  #confirming = new Set();
  /** @type {string[]} */
  #refusals = [];
  /** @type {Map<string, Subscription>} */
  #subscriptions = new Map();
  /** @type {Map<number, Subscription>} */
  #byId = new Map();
  /** @type {Map<string, (sentence: string) => void>} */
  #requests = new Map();
  /** @type {Watcher | undefined} */
  #watcher;
  /** @type {(failure: ConnectionLost | undefined) => void} */
  #tellClosed = () => {};

  /** @param {Options} options */
  constructor(options) {
    this.#options = options;
    this.#session = new Session(options.id ?? "omq-client");
    /**
     * Settles when the connection has ended: to undefined after `close`, else to the reason. Never rejects.
     * @type {Promise<ConnectionLost | undefined>}
     * @readonly
     */
    this.closed = new Promise((resolve) => (this.#tellClosed = resolve));
  }

  /**
   * Connect by a transport: see node.js for another than WebSocket.
   *
   * @param {(handlers: Handlers) => Promise<Transport>} open
   * @param {Options} [options]
   */
  static async open(open, options = {}) {
    const client = new Client(options);
    const transport = await open({ data: (octets) => client.#receive(octets), closed: (why) => client.#closed(why) });
    client.#start(transport);
    const given = () => client.#end(new ConnectionLost("the connection was given up"));
    options.signal?.addEventListener("abort", given, { once: true });
    try {
      // Connect has no answer. The server confirms nothing before it has accepted the id.
      await client.confirm();
    } catch (error) {
      client.#end(new ConnectionLost("the connection was given up"));
      throw options.signal?.aborted ? options.signal.reason : error;
    } finally {
      options.signal?.removeEventListener("abort", given);
    }
    return client;
  }

  // -- publishing ---------------------------------------------------------------------------------------------------

  /**
   * Publish a message. Resolves when there is room to send more; `confirm` tells whether it succeeded. Throws
   * MessageTooLong, and has sent nothing then, if the message does not fit into a line.
   *
   * @param {string | Uint8Array} topic
   * @param {string | Uint8Array} body
   */
  async publish(topic, body) {
    this.#check();
    const octets = encodeName(body);
    const limit = this.#options.maxLine ?? 2 ** 20;
    // The server closes a connection whose line is too long.
    if (2 * octets.length + 1000 > limit && this.#lineLength(topic, octets) > limit) {
      throw new MessageTooLong(`a message of ${octets.length} octets is too long for a line of ${limit}`);
    }
    this.#session.say("Publish", topic, octets);
    this.#flushSoon();
    if (this.#transport && this.#transport.unsent() > UNSENT_LIMIT) await this.#room();
  }

  /**
   * @param {string | Uint8Array} topic
   * @param {Uint8Array} body
   */
  #lineLength(topic, body) {
    const escaped = (/** @type {Uint8Array} */ octets) =>
      octets.reduce((sum, octet) => sum + ([10, 13, 34, 92].includes(octet) ? 2 : 1), 2);
    return "(Publish  )".length + escaped(encodeName(topic)) + escaped(body);
  }

  async #room() {
    while (!this.#over && this.#transport && this.#transport.unsent() > UNSENT_LIMIT / 2) {
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    this.#check();
  }

  /**
   * Wait until everything that was published since the last confirm is as safe as its topics promise.
   *
   * Throws Refused if the server refused some of it; its `refusals` say why.
   */
  async confirm() {
    const n = ++this.#confirms;
    /** @type {{refused?: Refused}} */
    const confirming = {};
    this.#confirming.add(confirming);
    try {
      await this.#ask("Confirm", n);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      const refused = new Refused(error.message, this.#refusals);
      // The server reports a refusal to one Confirm only, but those in flight ask about the same messages.
      for (const each of this.#confirming) each.refused ??= refused;
    } finally {
      this.#refusals = [];
      this.#confirming.delete(confirming);
    }
    if (confirming.refused) throw confirming.refused;
  }

  // -- topics -------------------------------------------------------------------------------------------------------

  /**
   * Create a topic, or succeed if it exists with these types.
   *
   * @param {string | Uint8Array} topic
   * @param {{delivery?: import("./frames.js").DeliveryType, persistence?: Persistence}} [types]
   *   Broadcast and Weak by default
   */
  async declare(topic, { delivery = "Broadcast", persistence = "Weak" } = {}) {
    const kept = persistence === "Transient" ? new Bare("Transient") : [new Bare("Persistent"), new Bare(persistence)];
    await this.#ask("Declare", topic, new Bare(delivery), /** @type {any} */ (kept));
  }

  /**
   * Delete a topic and its messages.
   *
   * @param {string | Uint8Array} topic
   */
  async delete(topic) {
    await this.#ask("Delete", topic);
  }

  /**
   * All topics.
   *
   * @returns {Promise<TopicInfo[]>}
   */
  topics() {
    return this.#ask("Topics");
  }

  // -- subscribing --------------------------------------------------------------------------------------------------

  /**
   * Subscribe to a topic. A connection has at most one subscription to it.
   *
   * @param {string | Uint8Array} topic
   * @param {import("./subscription.js").SubscribeOptions} [options]
   * @returns {Promise<Subscription>}
   */
  async subscribe(topic, options = {}) {
    const name = nameOf(topic);
    const [from, whenFull] = [options.from ?? "current", options.whenFull ?? "wait"];
    if (from !== "current" && from !== "beginning") integer("from", from);
    if (whenFull !== "wait" && whenFull !== "skip") throw new TypeError(`whenFull is "wait" or "skip", not ${whenFull}`);
    if (this.#subscriptions.has(name)) throw new AlreadyInUse(`this client is subscribed to ${printable(name)} already`);
    /** @type {Subscription} */
    const subscription = new Subscription(name, options, {
      pause: () => void this.#ask("Unsubscribe", name).catch(() => {}),
      resume: (from) => this.#resume(name, subscription, from),
      done: (id) => {
        this.#session.say("Received", name, id);
        this.#flushSoon();
      },
      close: (subscribed) => this.#unsubscribe(name, subscription, subscribed),
    });
    this.#subscriptions.set(name, subscription);
    try {
      await this.#subscribe(name, subscription, from, options.credit);
    } catch (error) {
      this.#forget(name, subscription);
      throw error;
    }
    return subscription;
  }

  /**
   * @param {string} name
   * @param {Subscription} subscription
   * @param {"current" | "beginning" | bigint | number} from
   * @param {number} [credit]
   */
  async #subscribe(name, subscription, from, credit) {
    const replay = typeof from === "string" ? new Bare(`From_${from}`) : [new Bare("From_message"), from];
    let refusal = "";
    if (credit) {
      this.#check();
      this.#session.say("Request", name, credit);
      this.#requests.set(name, (sentence) => (refusal = sentence));
    }
    try {
      await this.#asked(
        // At once: the next frame may be a message.
        ({ id }) => {
          this.#byId.set(id, subscription);
          subscription.resumed(id);
        },
        "Subscribe",
        name,
        /** @type {any} */ (replay),
      );
    } finally {
      this.#requests.delete(name);
    }
    if (refusal) {
      await this.#unsubscribe(name, subscription, true);
      throw new Refused(refusal);
    }
  }

  /**
   * @param {string} name
   * @param {Subscription} subscription
   * @param {bigint} from
   */
  async #resume(name, subscription, from) {
    try {
      const replays = await this.#replays(name, from);
      if (subscription.isOver) return; // closed meanwhile: its Unsubscribe is sent already
      if (!replays) {
        subscription.cannotReplay();
        await this.#subscribe(name, subscription, "current");
      } else {
        await this.#subscribe(name, subscription, from);
      }
      if (subscription.isOfAnother) throw new TopicDeleted(`the topic ${printable(name)} was deleted`);
    } catch (error) {
      if (subscription.isOfAnother) await this.#unsubscribe(name, subscription, true);
      this.#forget(name, subscription);
      subscription.end(/** @type {OmqError} */ (error));
    }
  }

  /**
   * Whether a topic can be replayed from a message on. Unlike Subscribe, Blocks creates no topic that is missing.
   *
   * @param {string} name
   * @param {bigint} from
   */
  async #replays(name, from) {
    try {
      await this.#ask("Blocks", name, from, 0);
      return true;
    } catch (error) {
      if (error instanceof Refused && CANNOT_REPLAY.test(error.message)) return false;
      if (error instanceof Refused) throw new TopicDeleted(`the topic ${printable(name)} was deleted`);
      throw error;
    }
  }

  /**
   * @param {string} name
   * @param {Subscription} subscription
   * @param {boolean} subscribed
   */
  async #unsubscribe(name, subscription, subscribed) {
    try {
      if (subscribed && !this.#over) await this.#ask("Unsubscribe", name);
    } catch (error) {
      if (!(error instanceof OmqError)) throw error; // the topic was deleted, or the connection has ended
    } finally {
      this.#forget(name, subscription);
    }
  }

  /**
   * @param {string} name
   * @param {Subscription} subscription
   */
  #forget(name, subscription) {
    if (this.#subscriptions.get(name) === subscription) this.#subscriptions.delete(name);
    for (const [id, each] of this.#byId) if (each === subscription) this.#byId.delete(id);
  }

  // -- stored messages ----------------------------------------------------------------------------------------------

  /**
   * Read stored messages of a persistent broadcast topic, with their times, keys and properties.
   *
   * @param {string | Uint8Array} topic
   * @param {{first?: bigint | number, count?: bigint | number, onGone?: (gone: import("./session.js").Gone) => void}} [options]
   *   the first id, 1 by default; how many ids, all by default
   * @returns {AsyncGenerator<Message>} in the order of their ids; ends at the newest message
   */
  async *fetch(topic, { first = 1n, count = Number.MAX_SAFE_INTEGER, onGone } = {}) {
    const begin = integer("first", first);
    const end = begin + integer("count", count);
    const step = BigInt(FETCH_AT_ONCE);
    let bound = begin;
    for (let next = begin; next < end; ) {
      if (bound <= next) bound = end - next < step ? end : next + step;
      const { messages, after } = await this.#fetchBlocks(topic, next, bound - next, onGone);
      let expected = next;
      for (const message of messages) {
        // Blocks are whole, and one may begin with messages of the block before it.
        if (message.id < expected || message.id >= end) continue;
        expected = message.id + 1n;
        yield message;
      }
      if (after < bound) return;
      next = after;
      // Many ids in a row may have no message, such as those that a restored backup skips: pass them in one step.
      if (!messages.length && next < end) bound = (await this.blocks(topic, next, end - next))[0]?.first ?? end;
    }
  }

  /**
   * @param {string | Uint8Array} topic
   * @param {bigint} first
   * @param {bigint} count
   * @param {((gone: import("./session.js").Gone) => void) | undefined} onGone
   * @returns {Promise<{messages: Message[], after: bigint}>}
   */
  #fetchBlocks(topic, first, count, onGone) {
    this.#check();
    return new Promise((resolve, reject) => {
      /** @type {Message[]} */
      const messages = [];
      const token = {
        reject,
        gone: onGone,
        /** @param {Uint8Array} octets */
        block: (octets) => {
          const block = decodeBlock(octets);
          if (!block.messages.length) {
            this.#session.endFetch();
            resolve({ messages, after: block.first });
          } else {
            messages.push(...block.messages);
          }
        },
      };
      this.#session.ask(token, "Fetch", nameOf(topic), first, count);
      this.#flushSoon();
    });
  }

  /**
   * The stored blocks of a range of a persistent broadcast topic, at most 4,096.
   *
   * @param {string | Uint8Array} topic
   * @param {bigint | number} first
   * @param {bigint | number} [count]
   * @returns {Promise<import("./frames.js").BlockInfo[]>}
   */
  blocks(topic, first, count = Number.MAX_SAFE_INTEGER) {
    return this.#ask("Blocks", topic, first, count);
  }

  /**
   * The id of the first stored message since a time; undefined if there is none.
   *
   * @param {string | Uint8Array} topic
   * @param {Date} date
   * @returns {Promise<bigint | undefined>}
   */
  async firstSince(topic, date) {
    const wanted = date instanceof Date ? date.getTime() * 1000 : NaN;
    if (Number.isNaN(wanted)) throw new TypeError("firstSince needs a Date with a valid time");
    checkTopic(topic);
    const name = nameOf(topic);
    const info = (await this.topics()).find((each) => each.topic === name);
    if (!info || info.last === 0n) return undefined;
    // Times never decrease: halve the range of ids until few are left.
    let [low, high] = [info.first, info.last + 1n];
    while (high - low > BigInt(FETCH_AT_ONCE)) {
      const middle = (low + high) / 2n;
      const found = await this.#firstStored(topic, middle, high);
      if (!found || found.time >= wanted) high = middle;
      else low = found.id;
    }
    for await (const message of this.fetch(topic, { first: low, count: Number(info.last - low) + 1 })) {
      if (/** @type {number} */ (message.time) >= wanted) return message.id;
    }
    return undefined;
  }

  /**
   * The first stored message from `from` on, and its time. There may be gaps.
   *
   * @param {string | Uint8Array} topic
   * @param {bigint} from
   * @param {bigint} end
   * @returns {Promise<{id: bigint, time: number} | undefined>}
   */
  async #firstStored(topic, from, end) {
    let [block] = await this.blocks(topic, from, 1);
    if (!block) [block] = await this.blocks(topic, from, Number(end - from)); // there is a gap
    if (!block || block.first >= from) return block && { id: block.first, time: block.time };
    for await (const { id, time } of this.fetch(topic, { first: from, count: 1 })) {
      return { id, time: /** @type {number} */ (time) };
    }
    return undefined;
  }

  // -- queues -------------------------------------------------------------------------------------------------------

  /**
   * Show messages of a queue without taking them: the first 4,096 octets of each body.
   *
   * @param {string | Uint8Array} queue
   * @param {{first?: bigint | number, count?: number}} [options]
   * @returns {Promise<{id: bigint, size: number, body: Uint8Array, exchange: string, key: string}[]>} at most 100, and of long ones fewer
   */
  async peek(queue, { first = 0n, count = 100 } = {}) {
    checkTopic(queue);
    const answer = await this.#manage("Peek", [["queue", queue], ["first", first], ["count", count]]);
    return list(answer.list).map((each) => {
      const fields = record(each);
      return {
        id: messageId(fields.id),
        size: number(fields.size),
        body: encodeName(atom(fields.body)),
        exchange: atom(fields.exchange),
        key: atom(fields.key),
      };
    });
  }

  /**
   * @param {string} request
   * @param {[string, import("./sexp.js").Written][]} fields
   */
  async #manage(request, fields) {
    const parts = fields.map(([name, value]) => [new Bare(name), value]);
    const [, ...rest] = list(await this.#ask("Manage", /** @type {any} */ ([new Bare(request), ...parts])));
    return record(rest);
  }

  // -- watching and administering -----------------------------------------------------------------------------------

  /**
   * Statistics of the server and its topics. This needs the right to watch.
   *
   * @param {number} [period]  milliseconds
   * @returns {AsyncGenerator<any>} values with a `kind`: Began, Server, Warnings, Topics, Gone, and Complete at the end
   *   of each round; docs/PROTOCOL.md describes them
   */
  async *watch(period = 1000) {
    this.#check();
    if (integer("period", period) <= 0n) throw new TypeError(`period is above 0, not ${period}`);
    if (this.#watcher) throw new AlreadyInUse("this client is watching already");
    const watcher = (this.#watcher = new Watcher());
    try {
      this.#session.say("Watch", period);
      this.#flushSoon();
      yield* watcher.values();
    } finally {
      this.#watcher = undefined;
      if (!this.#over) {
        this.#session.say("Watch", 0);
        this.#flushSoon();
      }
    }
  }

  /**
   * All connections. This needs the right to watch.
   *
   * @returns {Promise<any[]>} docs/PROTOCOL.md describes their fields
   */
  async connections() {
    const found = [];
    for (let first = 0; ; first = found[found.length - 1].id + 1) {
      const some = await this.#ask("Connections", first);
      if (!some.length) return found;
      found.push(...some);
    }
  }

  /**
   * The subscribers of a topic that are the furthest behind. This needs the right to watch.
   *
   * @param {string | Uint8Array} topic
   * @returns {Promise<any[]>}
   */
  subscribers(topic) {
    return this.#ask("Subscribers", topic);
  }

  /**
   * End another connection. This needs the right to administer, as do the methods below.
   *
   * @param {number} id  of `connections`
   * @returns {Promise<boolean>} whether there was such a connection
   */
  async disconnect(id) {
    return Boolean(await this.#ask("Disconnect", id));
  }

  /**
   * Delete the messages of a topic; of a queue, those that are ready.
   *
   * @param {string | Uint8Array} topic
   * @returns {Promise<number>} their number
   */
  async purge(topic) {
    return Number(await this.#ask("Purge", topic));
  }

  /**
   * Change how long a topic keeps its messages.
   *
   * @param {string | Uint8Array} topic
   * @param {{octets?: number | null, ms?: number | null} | undefined} limits  null: without this limit; undefined:
   *   what the server's configuration says
   */
  async retain(topic, limits) {
    // A limit that is not given ends, so a misspelt one would end all of them.
    const unknown = Object.keys(limits ?? {}).find((name) => name !== "octets" && name !== "ms");
    if (unknown !== undefined) throw new TypeError(`limits are octets and ms, not ${unknown}`);
    const limit = (/** @type {string} */ name, /** @type {number | null | undefined} */ value) => [
      new Bare(name),
      value === null || value === undefined ? [] : [value],
    ];
    const retention = limits
      ? [new Bare("Limits"), limit("octets", limits.octets), limit("ms", limits.ms)]
      : new Bare("Configured");
    await this.#ask("Retain", topic, /** @type {any} */ (retention));
  }

  // -- the connection -----------------------------------------------------------------------------------------------

  /** Send what was published, then close the connection. Without a confirm before, messages may be lost. */
  async close() {
    if (this.#over) return;
    this.#flush();
    this.#transport?.close();
    this.#finish(undefined);
  }

  /** Whether the connection is open. */
  get isOpen() {
    return this.#transport !== undefined && !this.#over;
  }

  /**
   * Send a command and wait for its answer.
   *
   * @param {string} constructor
   * @param {import("./session.js").Part[]} parts
   * @returns {Promise<any>}
   */
  #ask(constructor, ...parts) {
    return this.#asked(() => {}, constructor, ...parts);
  }

  /**
   * @param {(value: any) => void} first  called with the answer before the next frame is read
   * @param {string} constructor
   * @param {import("./session.js").Part[]} parts
   * @returns {Promise<any>}
   */
  async #asked(first, constructor, ...parts) {
    this.#check();
    const named = parts.map((part) => (part instanceof Uint8Array ? nameOf(part) : part));
    return new Promise((resolve, reject) => {
      /** @param {any} value */
      const answered = (value) => {
        first(value);
        resolve(value);
      };
      this.#session.ask({ resolve: answered, reject }, constructor, ...named);
      this.#flushSoon();
    });
  }

  #check() {
    if (this.#over) throw this.#over;
  }

  /** @param {Transport} transport */
  #start(transport) {
    this.#transport = transport;
    this.#flush();
    const silence = (this.#options.silence ?? 100) * 1000;
    this.#lastHeard = performance.now();
    this.#watchdog = setInterval(() => {
      if (performance.now() - this.#lastHeard > silence) {
        this.#end(new ConnectionLost(`the server has been silent for ${silence / 1000} seconds`));
      }
    }, silence / 10);
    /** @type {any} */ (this.#watchdog).unref?.();
  }

  #flushSoon() {
    if (this.#flushing) return;
    this.#flushing = true;
    queueMicrotask(() => this.#flush());
  }

  #flush() {
    this.#flushing = false;
    if (this.#over || !this.#transport) return;
    const octets = this.#session.takeOutput();
    if (octets.length) this.#transport.write(octets);
  }

  /** @param {Uint8Array} octets */
  #receive(octets) {
    this.#lastHeard = performance.now();
    try {
      for (const event of this.#session.receive(octets)) this.#take(event);
    } catch (error) {
      if (!(error instanceof OmqError)) throw error;
      this.#end(error instanceof ConnectionLost ? error : new ProtocolError(error.message));
    }
    this.#flush();
  }

  /** @param {import("./session.js").Event} event */
  #take(event) {
    switch (event.kind) {
      case "message":
        this.#byId.get(event.topicId)?.deliver(event.message);
        break;
      case "answered":
        event.token.resolve(event.value);
        break;
      case "refused":
        event.token.reject(new Refused(event.sentence));
        break;
      case "block":
        event.token.block(event.octets);
        break;
      case "gone":
        if (event.token) tell(event.token.gone, event.gone);
        else tell(this.#subscriptions.get(event.gone.topic)?.options.onGone, event.gone);
        break;
      case "ended": {
        const subscription = this.#byId.get(event.topic.id);
        if (subscription) {
          this.#forget(subscription.topic, subscription);
          subscription.topicDeleted();
        }
        break;
      }
      case "statistics":
        this.#watcher?.take(event.value);
        break;
      case "told":
        this.#told(event);
        break;
      default:
        break;
    }
  }

  /** @param {import("./session.js").Told} told */
  #told({ constructor, argument, sentence }) {
    this.#lastSentence = sentence;
    this.#isRefused = constructor === "Connect";
    if (constructor === "Publish" && this.#refusals.length < REFUSALS_KEPT) this.#refusals.push(sentence);
    if (constructor === "Watch") this.#watcher?.end(new Refused(sentence));
    if (constructor === "Request") this.#requests.get(argument ?? "")?.(sentence);
    tell(this.#options.onError, sentence);
  }

  /** @param {string} why */
  #closed(why) {
    this.#end(new (this.#isRefused ? ConnectRefused : ConnectionLost)(this.#lastSentence || why));
  }

  /** @param {ConnectionLost} failure */
  #end(failure) {
    if (this.#over) return;
    this.#finish(failure);
    this.#transport?.abort(); // this may tell that the connection is closed, without the reason
  }

  /** @param {ConnectionLost | undefined} failure */
  #finish(failure) {
    if (this.#over) return;
    this.#over = failure ?? new ConnectionLost("the connection was closed");
    clearInterval(this.#watchdog);
    for (const token of this.#session.abandon()) token.reject(this.#over);
    for (const subscription of this.#subscriptions.values()) subscription.end(failure);
    this.#watcher?.end(this.#over);
    this.#subscriptions.clear();
    this.#byId.clear();
    this.#tellClosed(failure);
  }
}
