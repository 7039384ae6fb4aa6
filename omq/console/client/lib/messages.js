/** Messages. */

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** A message of a topic. */
export class Message {
  /**
   * @param {bigint} id
   * @param {Uint8Array} body
   */
  constructor(id, body) {
    /** @readonly */
    this.id = id;
    /** @readonly */
    this.body = body;
    /**
     * When it was stored, in microseconds since the epoch. Only messages that were fetched have it.
     * @type {number | undefined}
     */
    this.time = undefined;
    /**
     * Exchange, routing key and properties. Only messages that were fetched have it.
     * @type {import("./heads.js").Head | undefined}
     */
    this.head = undefined;
  }

  /** The body as text; octets that are not UTF-8 become U+FFFD. */
  get text() {
    return decoder.decode(this.body);
  }

  /** The body, parsed as JSON. @returns {any} */
  json() {
    return JSON.parse(this.text);
  }
}
