/** The types of the client: README.md describes what each function does. */

import type { BlockInfo, ConnectionInfo, Statistics, SubscriberInfo, TopicInfo } from "./records.js";
import type { DeliveryType, Persistence } from "./records.js";

export type * from "./records.js";

/** A name or a body: a string, or its octets. */
export type Octets = string | Uint8Array;

// -- connecting -------------------------------------------------------------------------------------------------------

export interface Options {
  /** Who the client is: any name, or `name:secret` where the server has configured clients. */
  id?: string;
  /** Gives up an attempt to connect. */
  signal?: AbortSignal;
  /** Seconds without any octet of the server after which the connection counts as lost; 100 by default. */
  silence?: number;
  /** The server's `max_line_bytes`; 1 MiB by default. */
  maxLine?: number;
  /** Called with Errors that answer no command, for example about a Publish. */
  onError?: (sentence: string) => void;
  /** Another implementation of WebSocket. */
  WebSocket?: WebSocketConstructor;
}

/** What the client uses of a WebSocket, as browsers, Node and npm's `ws` have it. */
export interface WebSocketLike {
  binaryType: string;
  readonly bufferedAmount: number;
  onopen: ((event: any) => any) | null;
  onmessage: ((event: any) => any) | null;
  onclose: ((event: any) => any) | null;
  onerror: ((event: any) => any) | null;
  send(octets: Uint8Array): void;
  close(code?: number): void;
}

export type WebSocketConstructor = new (url: string | URL) => WebSocketLike;

/** Connect by WebSocket: `ws://host:port/ws` or `wss://host:port/ws`. */
export function connect(url: string | URL, options?: Options): Promise<Client>;

export type LinkState = { state: "connecting" | "connected" } | { state: "lost"; why: OmqError; seconds: number };

export interface Hooks {
  /** Called with each new client: subscribe there. */
  use: (client: Client) => unknown;
  onState?: (state: LinkState) => void;
  /** Whether another attempt is useless: then the error is thrown. */
  isFinal?: (error: unknown) => boolean;
  /** Called with any exception of `use` but ConnectionLost; by default it is written to the console. */
  onError?: (error: unknown) => void;
  signal: AbortSignal;
  /** The longest pause between attempts, in seconds; 10 by default. */
  longest?: number;
}

/** Connect, and connect again whenever the connection is lost, until `signal` is aborted. */
export function keepConnected(open: (signal: AbortSignal) => Promise<Client>, hooks: Hooks): Promise<void>;

/** What a transport calls. */
export interface Handlers {
  data: (octets: Uint8Array) => void;
  /** Called once, at the end of the connection. */
  closed: (why: string) => void;
}

/** A connection, as a client uses it. */
export interface Transport {
  write: (octets: Uint8Array) => void;
  /** Octets that were written and not sent yet. */
  unsent: () => number;
  /** Send what was written, then close. */
  close: () => void;
  /** Close at once. */
  abort: () => void;
}

export function openWebSocket(
  url: string | URL,
  handlers: Handlers,
  options?: Pick<Options, "signal" | "WebSocket">,
): Promise<Transport>;

// -- a client ---------------------------------------------------------------------------------------------------------

export class Client {
  private constructor();

  /** Connect by a transport of your own. */
  static open(open: (handlers: Handlers) => Promise<Transport>, options?: Options): Promise<Client>;

  publish(topic: Octets, body: Octets): Promise<void>;
  confirm(): Promise<void>;
  subscribe(topic: Octets, options?: SubscribeOptions): Promise<Subscription>;
  /** `Broadcast` and `Weak` by default. */
  declare(topic: Octets, types?: { delivery?: DeliveryType; persistence?: Persistence }): Promise<void>;
  delete(topic: Octets): Promise<void>;
  topics(): Promise<TopicInfo[]>;

  fetch(
    topic: Octets,
    options?: { first?: bigint | number; count?: bigint | number; onGone?: (gone: Gone) => void },
  ): AsyncGenerator<Message>;
  firstSince(topic: Octets, date: Date): Promise<bigint | undefined>;
  blocks(topic: Octets, first: bigint | number, count?: bigint | number): Promise<BlockInfo[]>;
  peek(queue: Octets, options?: { first?: bigint | number; count?: number }): Promise<Peeked[]>;

  /** Statistics, every `period` milliseconds: 1,000 by default. */
  watch(period?: number): AsyncGenerator<Statistics>;
  connections(): Promise<ConnectionInfo[]>;
  subscribers(topic: Octets): Promise<SubscriberInfo[]>;
  disconnect(id: number): Promise<boolean>;
  purge(topic: Octets): Promise<number>;
  /** Null: without this limit. Undefined: what the server's configuration says. */
  retain(topic: Octets, limits: { octets?: number | null; ms?: number | null } | undefined): Promise<void>;

  close(): Promise<void>;
  readonly closed: Promise<ConnectionLost | undefined>;
  readonly isOpen: boolean;
}

/** A message of a queue, with the first 4,096 octets of its body. */
export interface Peeked {
  id: bigint;
  size: number;
  body: Uint8Array;
  exchange: string;
  key: string;
}

// -- messages ---------------------------------------------------------------------------------------------------------

export interface Message {
  readonly id: bigint;
  readonly body: Uint8Array;
  /** The body as text; octets that are not UTF-8 become U+FFFD. */
  readonly text: string;
  /** Parse the body as JSON. */
  json(): any;
  /** When it was stored, in microseconds since the epoch. Only messages that were fetched have it. */
  time: number | undefined;
  /** Only messages that were fetched have it. */
  head: Head | undefined;
}

/** The exchange, the routing key and the properties of a message. */
export interface Head {
  exchange: string;
  key: string;
  properties: { [name: string]: Value };
}

/** A property, or a value of a table of headers. */
export type Value =
  null | boolean | number | bigint | string | Uint8Array | Date | Value[] | { [name: string]: Value };

/** Messages that are not available. */
export interface Gone {
  topic: string;
  first: bigint;
  last: bigint;
  reason: string;
}

export interface SubscribeOptions {
  from?: "current" | "beginning" | bigint | number;
  /** How many messages wait for the loop; 1,000 by default. */
  buffer?: number;
  /** How many octets of their bodies; 16 MiB by default. */
  bufferOctets?: number;
  whenFull?: "wait" | "skip";
  /** Of a round-robin topic: how many messages the server sends before they are done. */
  credit?: number;
  onGone?: (gone: Gone) => void;
}

export class Subscription implements AsyncIterable<Message> {
  private constructor();

  readonly topic: string;
  /** The id after the last message that the loop got. */
  readonly next: bigint | undefined;
  /** The number of messages that were skipped because the buffer was full. */
  readonly skipped: number;
  readonly isOver: boolean;
  close(): Promise<void>;
  [Symbol.asyncIterator](): AsyncIterator<Message>;
}

/** Check a block and read its messages. */
export function decodeBlock(octets: Uint8Array): { topicId: number; first: bigint; messages: Message[] };
export function decodeHead(octets: Uint8Array): Head;

// -- names ------------------------------------------------------------------------------------------------------------

export function encodeName(name: Octets): Uint8Array;
export function decodeName(octets: Uint8Array): string;
/** Make a name safe to look at: control characters and octets that are not UTF-8 are escaped. */
export function printable(name: string): string;

// -- errors -----------------------------------------------------------------------------------------------------------

export class OmqError extends Error {}
export class Refused extends OmqError {
  constructor(sentence: string, refusals?: string[]);
  /** Of `confirm`: the sentences about refused messages, at most 100. */
  readonly refusals: string[];
}
export class MessageTooLong extends OmqError {}
export class AlreadyInUse extends OmqError {}
export class WatchOverflow extends OmqError {}
export class TopicDeleted extends OmqError {}
export class BrokenBlock extends OmqError {}
export class ConnectionLost extends OmqError {}
export class ConnectRefused extends ConnectionLost {}
export class ProtocolError extends ConnectionLost {}
