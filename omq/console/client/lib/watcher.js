/** The values of Watch, until the loop takes them. */

import { WatchOverflow } from "./errors.js";

const LIMIT = 10_000;

/** A queue of values. It ends with an error if nobody takes them: the client watches again, from the beginning. */
export class Watcher {
  /** @type {any[]} */
  #values = [];
  /** @type {Error | undefined} */
  #failure;
  #wake = () => {};

  /** @param {any} value */
  take(value) {
    if (this.#failure) return;
    this.#values.push(value);
    if (this.#values.length > LIMIT) {
      this.#values = [];
      this.#failure = new WatchOverflow(`nobody took the last ${LIMIT} values of watch`);
    }
    this.#wake();
  }

  /** @param {Error} failure */
  end(failure) {
    this.#failure ??= failure;
    this.#wake();
  }

  /** @returns {AsyncGenerator<any>} */
  async *values() {
    for (;;) {
      const values = this.#values;
      this.#values = [];
      yield* values;
      if (this.#values.length) continue;
      if (this.#failure) throw this.#failure;
      await new Promise((resolve) => (this.#wake = () => resolve(undefined)));
    }
  }
}
