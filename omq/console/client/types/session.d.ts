/** The types of a connection's state, without a socket. */

import type { Gone, Message, Statistics } from "./omq.js";

/** An argument of a command: an atom, or a list of arguments. */
export type Part = string | Uint8Array | number | bigint | Part[];

export type Event =
  | { kind: "accepted" }
  | { kind: "answered"; token: any; value: any }
  | { kind: "refused"; token: any; sentence: string }
  | { kind: "message"; topicId: number; message: Message }
  | { kind: "block"; token: any; octets: Uint8Array }
  | { kind: "gone"; token: any; gone: Gone }
  | { kind: "ended"; topic: { id: number; topic: string } }
  | { kind: "statistics"; value: Statistics }
  | { kind: "told"; constructor: string; argument: string | undefined; sentence: string };

export class Session {
  /** The id of the client; where the server has configured clients, `name:secret`. */
  constructor(id: string);
  /** Take the octets to send now. */
  takeOutput(): Uint8Array;
  /** Send a command that has no answer except Errors, and return the length of its line. */
  say(constructor: string, ...parts: Part[]): number;
  /** Send a command that has an answer: the event of the answer has the token. */
  ask(token: any, constructor: string, ...parts: Part[]): void;
  /** Note that the oldest Fetch is complete. */
  endFetch(): void;
  /** Forget the commands that wait for answers, and return their tokens. */
  abandon(): any[];
  /** Process octets of the server. Payloads of events are valid until the next call. */
  receive(octets: Uint8Array): Generator<Event>;
}

/** Return a name as a string. */
export function nameOf(name: string | Uint8Array): string;
