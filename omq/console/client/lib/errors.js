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

/** The message makes a line longer than the server accepts. Nothing of it was sent. */
export class MessageTooLong extends OmqError {}

/** The client does this already: it is subscribed to the topic, or watches. */
export class AlreadyInUse extends OmqError {}

/** The loop over `watch` took its values too slowly, and the rest was dropped. */
export class WatchOverflow extends OmqError {}

/** The topic of a subscription was deleted. */
export class TopicDeleted extends OmqError {}

/** The connection ended, could not be made, or the peer is no omq server. */
export class ConnectionLost extends OmqError {}

/** The server refused the id or its secret, or another connection of this client; `message` is its sentence. */
export class ConnectRefused extends ConnectionLost {}

/** The server sent what the protocol does not allow. */
export class ProtocolError extends ConnectionLost {}
