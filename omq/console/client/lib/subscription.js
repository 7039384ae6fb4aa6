/** Subscriptions: the messages of a topic as an async iterator, with a bounded buffer. */

import { OmqError, TopicDeleted } from "./errors.js";

/**
 * @typedef {import("./messages.js").Message} Message
 * @typedef {object} SubscribeOptions
 * @property {"current" | "beginning" | bigint | number} [from]  where to begin: with the next message (the default), with the
 *   oldest that is kept, or with the message of this id
 * @property {number} [buffer]  how many messages wait for the iterator at most; 1,000 by default
 * @property {number} [bufferOctets]  how many octets of bodies; 16 MiB by default
 * @property {"wait" | "skip"} [whenFull]  what happens when the buffer is full. `"wait"`: unsubscribe, and subscribe
 *   again from the first missing message when there is room; a topic that cannot be replayed skips messages. `"skip"`:
 *   skip the messages without room. `skipped` counts them.
 * @property {number} [credit]  of a round-robin topic: how many messages the server sends before they are done.
 *   A message is done when the iterator is asked for the next one. Without credit, it is done when it was sent.
 * @property {(gone: {topic: string, first: bigint, last: bigint, reason: string}) => void} [onGone]
 *   messages that the server cannot send; the subscription continues after them
 */

/**
 * A subscription. Iterate over it once: `for await (const message of subscription)`.
 *
 * The loop ends when `close` was called. It throws TopicDeleted or ConnectionLost.
 *
 * @implements {AsyncIterable<Message>}
 */
export class Subscription {
  /** @type {Message[]} */
  #buffer = [];
  #begin = 0;
  #octets = 0;
  /** @type {{resolve: (result: IteratorResult<Message>) => void, reject: (error: unknown) => void} | undefined} */
  #waiter;
  /** @type {OmqError | undefined} */
  #failure;
  /** @type {"live" | "paused" | "resuming" | "over"} */
  #state = "live";
  /** @type {Message | undefined} */
  #given;
  /** The id from which to subscribe again. @type {bigint | undefined} */
  #expected;
  /** Whether messages are missing between `#expected` and the next message. */
  #hasGap = false;
  #whenFull;
  /** @type {number | undefined} */
  #topicId;
  /** Whether the topic was deleted during a pause, and the server sends messages of another one with its name. */
  isOfAnother = false;

  /**
   * Use `client.subscribe` instead.
   *
   * @param {string} topic
   * @param {SubscribeOptions} options
   * @param {{pause: () => void, resume: (from: bigint) => Promise<void>, done: (id: bigint) => void,
   *   close: (subscribed: boolean) => Promise<void>}} actions
   */
  constructor(topic, options, actions) {
    /** @readonly */
    this.topic = topic;
    /** The number of messages that were skipped because the buffer was full. */
    this.skipped = 0;
    this.options = { buffer: 1000, bufferOctets: 16 * 2 ** 20, ...options };
    this.#whenFull = options.credit ? "grow" : (options.whenFull ?? "wait"); // credit bounds the buffer, too
    this.actions = actions;
  }

  /** The id after the newest message that the iterator has returned: where another subscription would continue. */
  get next() {
    return this.#given && this.#given.id + 1n;
  }

  /**
   * Take a message from the connection.
   *
   * @param {Message} message
   */
  deliver(message) {
    if (this.#state !== "live") return;
    if (this.#hasGap) this.skipped += Number(message.id - /** @type {bigint} */ (this.#expected));
    this.#hasGap = false;
    if (this.#waiter) {
      const { resolve } = this.#waiter;
      this.#waiter = undefined;
      this.#given = message;
      resolve({ value: message, done: false });
    } else if (this.#whenFull === "grow" || this.#hasRoom(message)) {
      this.#buffer.push(message);
      this.#octets += message.body.length;
    } else if (this.#whenFull === "skip") {
      this.skipped += 1;
    } else {
      this.#expected = message.id;
      this.#state = "paused";
      this.actions.pause();
    }
  }

  /** @param {Message} message */
  #hasRoom(message) {
    const count = this.#buffer.length - this.#begin;
    const { buffer, bufferOctets } = this.options;
    return count === 0 || (count < buffer && this.#octets + message.body.length <= bufferOctets);
  }

  /**
   * End the subscription: after the messages in the buffer, with an error or without.
   *
   * @param {OmqError} [failure]
   */
  end(failure) {
    if (this.#state === "over") return;
    this.#state = "over";
    this.#failure = failure;
    if (this.#waiter) {
      const { resolve, reject } = this.#waiter;
      this.#waiter = undefined;
      if (failure) reject(failure);
      else resolve({ value: undefined, done: true });
    }
  }

  /** Whether the subscription was closed or has failed. */
  get isOver() {
    return this.#state === "over";
  }

  /** Note that the topic was deleted. */
  topicDeleted() {
    this.end(new TopicDeleted(`the topic ${this.topic} was deleted`));
  }

  /** Unsubscribe. Messages in the buffer are dropped; those of a queue go to other workers. */
  async close() {
    this.#buffer = [];
    this.#begin = 0;
    if (this.#state === "over") return;
    const subscribed = this.#state !== "paused";
    this.end();
    await this.actions.close(subscribed);
  }

  /** @returns {AsyncIterator<Message>} */
  [Symbol.asyncIterator]() {
    return {
      next: () => this.#next(),
      return: async () => {
        await this.close();
        return { value: undefined, done: true };
      },
    };
  }

  /** @returns {Promise<IteratorResult<Message>>} */
  async #next() {
    if (this.options.credit && this.#given && this.#state !== "over") this.actions.done(this.#given.id);
    if (this.#begin < this.#buffer.length) {
      const message = this.#buffer[this.#begin++];
      this.#octets -= message.body.length;
      if (this.#begin === this.#buffer.length || this.#begin > 1024) {
        this.#buffer.splice(0, this.#begin);
        this.#begin = 0;
      }
      this.#given = message;
      if (this.#state === "paused" && this.#buffer.length - this.#begin <= this.options.buffer / 2) this.#resume();
      return { value: message, done: false };
    }
    if (this.#failure) throw this.#failure;
    if (this.#state === "over") return { value: undefined, done: true };
    if (this.#waiter) throw new TypeError("a subscription has one iterator, which is asked for one message at a time");
    return new Promise((resolve, reject) => {
      this.#waiter = { resolve, reject };
    });
  }

  #resume() {
    this.#state = "resuming";
    void this.actions.resume(/** @type {bigint} */ (this.#expected));
  }

  /** Note that the topic cannot be replayed, so the messages since the pause are missing. */
  cannotReplay() {
    this.#whenFull = "skip";
    this.#hasGap = true;
  }

  /**
   * Note that the server sends messages, for the first time or again.
   *
   * @param {number} id  of the topic
   */
  resumed(id) {
    this.#topicId ??= id;
    this.isOfAnother = id !== this.#topicId;
    if (this.#state === "resuming" && !this.isOfAnother) this.#state = "live";
  }
}
