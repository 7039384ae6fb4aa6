/** The errors of the client. */

/** The base of all errors of this client. */
export class OmqError extends Error {
  get name() {
    return this.constructor.name;
  }
}

/** The server answered a command with an Error; `message` is its sentence. */
export class Refused extends OmqError {
  /**
   * @param {string} sentence
   * @param {string[]} [refusals]  of a Confirm: the sentences about refused Publishes, at most 100
   */
  constructor(sentence, refusals = []) {
    super(refusals.length ? `${sentence}: ${refusals[0]}` : sentence);
    /** @readonly */
    this.refusals = refusals;
  }
}

/** The topic of a subscription was deleted. */
export class TopicDeleted extends OmqError {}

/** The connection ended, could not be made, or the peer is no omq server. */
export class ConnectionLost extends OmqError {}

/** The server sent what the protocol does not allow. */
export class ProtocolError extends ConnectionLost {}
