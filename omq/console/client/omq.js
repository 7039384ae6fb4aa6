/**
 * A client of omq for browsers and Node: `import { connect } from "omq-client"`.
 *
 * README.md describes it, and the server's docs/PROTOCOL.md describes what it sends and receives.
 *
 * @module
 */

export { connect, Client } from "./lib/client.js";
export { Subscription } from "./lib/subscription.js";
export { keepConnected } from "./lib/reconnecting.js";
export { openWebSocket } from "./lib/websocket.js";
export { BrokenBlock, decodeBlock } from "./lib/blocks.js";
export { decodeHead } from "./lib/heads.js";
export { decodeName, encodeName, printable } from "./lib/names.js";
export {
  AlreadyInUse,
  ConnectRefused,
  ConnectionLost,
  MessageTooLong,
  OmqError,
  ProtocolError,
  Refused,
  TopicDeleted,
  WatchOverflow,
} from "./lib/errors.js";
