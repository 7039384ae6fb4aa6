/**
 * What the console knows of the server: its topics, with their rates of the last minute, and its statistics.
 *
 * It comes from Watch. A client without the right to watch gets the list of topics every two seconds instead; then some
 * numbers are missing.
 */

/** How many rates a history has. */
export const HISTORY = 60;

/**
 * @typedef {object} TopicState
 * @property {number} id
 * @property {string} topic
 * @property {import("../client/lib/frames.js").DeliveryType} delivery
 * @property {import("../client/lib/frames.js").Persistence} persistence
 * @property {any} info  the numbers that came last
 * @property {number} inRate  messages per second
 * @property {number} outRate
 * @property {number} octetsRate
 * @property {Float32Array | undefined} history  a ring of `inRate`
 * @property {number} round  when these rates were computed
 */

/** Holds the state, and tells views when a round of numbers is complete. */
export class Store extends EventTarget {
  /** @type {Map<number, TopicState>} */
  topics = new Map();
  /** @type {Map<string, TopicState>} */
  byName = new Map();
  /** @type {any} */
  server = undefined;
  /** @type {any[]} */
  warnings = [];
  /** Latencies of commits by level: rings in microseconds. @type {Map<string, Float32Array>} */
  commits = new Map();
  /** Whether a first complete list of topics has come. */
  isComplete = false;
  /** Whether the numbers come from Watch. */
  isWatching = false;
  round = 0;
  /** The sum over all topics of this round. */
  total = { in: 0, out: 0 };
  #time = 0;
  #lastTime = 0;
  /** Topics whose rates are not 0. @type {Set<TopicState>} */
  #active = new Set();

  /**
   * Take a value of Watch.
   *
   * @param {any} value
   */
  take(value) {
    this.isWatching = true;
    switch (value.kind) {
      case "Began":
        this.#reset();
        break;
      case "Server":
        this.#takeServer(value);
        break;
      case "Warnings":
        this.warnings = [...this.warnings, ...value.list].slice(-200);
        break;
      case "Topics":
        this.#time = value.timeUs;
        for (const info of value.list) this.#takeTopic(info, info.messagesIn, info.messagesOut, info.octetsIn);
        break;
      case "Gone":
        for (const id of value.ids) this.#remove(id);
        break;
      case "Complete":
        this.#complete(value.timeUs);
        break;
      default:
        break;
    }
  }

  /**
   * Take the list of topics, of a server that may not be watched.
   *
   * @param {import("../client/lib/frames.js").TopicInfo[]} list
   */
  takeList(list) {
    this.isWatching = false;
    this.#time = Date.now() * 1000;
    const ids = new Set(list.map(({ id }) => id));
    for (const id of this.topics.keys()) if (!ids.has(id)) this.#remove(id);
    for (const info of list) this.#takeTopic({ ...info, octets: info.bytes }, Number(info.last), 0, 0);
    this.#complete(this.#time);
  }

  /** Forget everything: there is a new connection. Pages keep what they show until the next round. */
  begin() {
    this.#reset();
    this.isWatching = false;
  }

  #reset() {
    this.topics.clear();
    this.byName.clear();
    this.#active.clear();
    this.warnings = [];
    this.commits.clear();
    this.isComplete = false;
    this.server = undefined;
    this.#lastTime = 0;
  }

  /** Forget everything: another client has signed in. */
  clear() {
    this.begin();
    this.dispatchEvent(new Event("round"));
  }

  /** @param {any} server */
  #takeServer(server) {
    const before = this.server;
    for (const writer of server.writers) {
      const earlier = before?.writers.find((/** @type {any} */ each) => each.level === writer.level);
      const commits = earlier ? writer.commits - earlier.commits : 0;
      writer.meanUs = commits > 0 ? (writer.commitUs - earlier.commitUs) / commits : 0;
      let ring = this.commits.get(writer.level);
      if (!ring) this.commits.set(writer.level, (ring = new Float32Array(HISTORY)));
      ring[(this.round + 1) % HISTORY] = writer.meanUs;
    }
    this.server = server;
  }

  /**
   * @param {any} info
   * @param {number} messagesIn
   * @param {number} messagesOut
   * @param {number} octetsIn
   */
  #takeTopic(info, messagesIn, messagesOut, octetsIn) {
    const before = this.topics.get(info.id);
    /** @type {TopicState} */
    const state = before ?? {
      id: info.id, topic: info.topic, delivery: info.delivery, persistence: info.persistence, info,
      inRate: 0, outRate: 0, octetsRate: 0, history: undefined, round: this.round,
    };
    const seconds = (this.#time - this.#lastTime) / 1e6;
    if (before && this.#lastTime && seconds > 0) {
      const per = (/** @type {number} */ now, /** @type {number} */ then) => Math.max(0, now - (then ?? 0)) / seconds;
      state.inRate = per(messagesIn, before.info.counted[0]);
      state.outRate = per(messagesOut, before.info.counted[1]);
      state.octetsRate = per(octetsIn, before.info.counted[2]);
      this.#write(state, this.round + 1);
      if (state.inRate || state.outRate) this.#active.add(state);
    }
    state.info = { ...info, counted: [messagesIn, messagesOut, octetsIn] };
    state.delivery = info.delivery;
    state.persistence = info.persistence;
    this.topics.set(info.id, state);
    this.byName.set(info.topic, state);
  }

  /**
   * Write the rate of a round; the rounds since the last one had none.
   *
   * @param {TopicState} state
   * @param {number} round
   */
  #write(state, round) {
    if (!state.history) {
      if (!state.inRate) return;
      state.history = new Float32Array(HISTORY);
    }
    for (let at = Math.max(state.round + 1, round - HISTORY + 1); at < round; at++) state.history[at % HISTORY] = 0;
    state.history[round % HISTORY] = state.inRate;
    state.round = round;
  }

  /** @param {number} id */
  #remove(id) {
    const state = this.topics.get(id);
    if (!state) return;
    this.topics.delete(id);
    if (this.byName.get(state.topic) === state) this.byName.delete(state.topic);
    this.#active.delete(state);
  }

  /** @param {number} time */
  #complete(time) {
    this.round++;
    this.total = { in: 0, out: 0 };
    for (const state of this.#active) {
      if (state.round !== this.round) {
        state.inRate = state.outRate = state.octetsRate = 0; // it has not changed in this round
        this.#active.delete(state);
      }
      this.total.in += state.inRate;
      this.total.out += state.outRate;
    }
    this.#lastTime = time;
    this.isComplete = true;
    this.dispatchEvent(new Event("round"));
  }

  /**
   * The rates of the last minute, the oldest first.
   *
   * @param {Float32Array | undefined} ring
   * @param {number} written  the newest round in it
   */
  series(ring, written = this.round) {
    const rates = new Float32Array(HISTORY);
    if (!ring) return rates;
    for (let at = 0; at < HISTORY; at++) {
      const round = this.round - HISTORY + 1 + at;
      if (round >= 0 && round <= written && round > written - HISTORY) rates[at] = ring[round % HISTORY];
    }
    return rates;
  }
}
