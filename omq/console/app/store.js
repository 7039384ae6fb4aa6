/**
 * The state of the server in the console: its topics, with their rates of the last minute, and its statistics.
 *
 * It comes from Watch. Of the topics that a client may not watch, it gets the list every two seconds instead; then some
 * numbers are missing.
 */

/** The number of rates in a history. */
const HISTORY = 60;

/**
 * @typedef {object} TopicState
 * @property {number} id
 * @property {string} topic
 * @property {import("../client/lib/frames.js").DeliveryType} delivery
 * @property {import("../client/lib/frames.js").Persistence} persistence
 * @property {boolean} isWatched  whether its numbers come from Watch
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
  /** The time of the last value of Watch, as of `performance.now()`. */
  heard = 0;
  round = 0;
  /** The sum over all topics of this round. */
  total = { in: 0, out: 0 };
  #time = 0;
  #lastTime = 0;
  /** When the last list came; 0 without one. */
  #listTime = 0;
  /** Whether a round waits for the list. */
  #needsList = false;
  /** Topics whose rates are not 0. @type {Set<TopicState>} */
  #active = new Set();

  /**
   * Take a value of Watch.
   *
   * @param {any} value
   */
  take(value) {
    this.isWatching = true;
    this.heard = performance.now();
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
        for (const info of value.list) this.#takeTopic(info, [info.messagesIn, info.messagesOut, info.octetsIn], true, this.#since(this.#lastTime));
        break;
      case "Gone":
        for (const id of value.ids) this.#remove(id);
        break;
      case "Complete":
        this.#time = value.timeUs;
        // A client that is not told of the server may not watch all topics: the list has the others.
        this.#needsList = !this.server && !this.#listTime;
        if (!this.#needsList) this.#complete();
        break;
      default:
        break;
    }
  }

  /**
   * Take the list of topics: those that are not watched are known from it only.
   *
   * @param {import("../client/lib/frames.js").TopicInfo[]} list
   */
  takeList(list) {
    const now = performance.now() * 1000;
    const seconds = this.#listTime && (now - this.#listTime) / 1e6;
    this.#listTime = now;
    const ids = new Set(list.map(({ id }) => id));
    for (const state of [...this.topics.values()]) if (!state.isWatched && !ids.has(state.id)) this.#remove(state.id);
    for (const info of list) {
      if (this.topics.get(info.id)?.isWatched) continue;
      this.#takeTopic({ ...info, octets: info.bytes }, [Number(info.last), 0, 0], false, seconds);
    }
    if (this.#needsList || !this.isWatching) this.#complete();
  }

  /** @param {number} time */
  #since(time) {
    return time && (this.#time - time) / 1e6;
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
    this.#lastTime = this.#listTime = 0;
    this.#needsList = false;
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
   * @param {number[]} counted  messages in and out, octets in
   * @param {boolean} isWatched
   * @param {number} seconds  since the numbers before; 0 without such
   */
  #takeTopic(info, counted, isWatched, seconds) {
    const before = this.topics.get(info.id);
    /** @type {TopicState} */
    const state = before ?? {
      id: info.id, topic: info.topic, delivery: info.delivery, persistence: info.persistence, isWatched, info,
      inRate: 0, outRate: 0, octetsRate: 0, history: undefined, round: this.round,
    };
    if (before && before.isWatched === isWatched && seconds > 0) {
      [state.inRate, state.outRate, state.octetsRate] = counted.map((now, at) => Math.max(0, now - (before.info.counted[at] ?? 0)) / seconds);
      this.#write(state, this.round + 1);
      if (state.inRate || state.outRate) this.#active.add(state);
    }
    state.isWatched = isWatched;
    state.info = { ...info, counted };
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

  #complete() {
    this.#needsList = false;
    this.round++;
    this.total = { in: 0, out: 0 };
    for (const state of this.#active) {
      // A list comes in every other round: until the next one, its rates stay.
      if (!state.isWatched && (state.inRate || state.outRate)) this.#write(state, this.round);
      if (state.round !== this.round) {
        state.inRate = state.outRate = state.octetsRate = 0; // it has not changed in this round
        this.#active.delete(state);
      }
      this.total.in += state.inRate;
      this.total.out += state.outRate;
    }
    this.#lastTime = this.#time;
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
