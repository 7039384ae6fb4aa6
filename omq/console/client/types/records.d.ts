/** The records that the server sends. docs/PROTOCOL.md describes their fields. */

export type DeliveryType = "Broadcast" | "Round_robin";

/** A sync level of a persistent topic, or `Transient`. */
export type Persistence = "Strong" | "Weak" | "Async" | "Transient";

/** An answer of `topics`. */
export interface TopicInfo {
  id: number;
  topic: string;
  delivery: DeliveryType;
  persistence: Persistence;
  messages: number;
  bytes: number;
  first: bigint;
  last: bigint;
  subscribers: number;
}

/** A stored block; its time is in microseconds since the epoch. */
export interface BlockInfo {
  first: bigint;
  count: number;
  time: number;
  bytes: number;
}

// -- Watch ------------------------------------------------------------------------------------------------------------

export type Statistics = Began | ServerStatistics | Warnings | Topics | TopicsGone | Complete;

export interface Began {
  kind: "Began";
  period: number;
}

export interface ServerStatistics {
  kind: "Server";
  timeUs: number;
  version: string;
  uptime: number;
  connections: number;
  maxConnections: number;
  protocols: { protocol: string; connections: number }[];
  subscriptions: number;
  maxSubscriptions: number;
  topics: number;
  maxTopics: number;
  leases: number;
  watchers: number;
  turnedAway: number;
  memory: { name: string; used: number; limit: number }[];
  writers: WriterStatistics[];
  diskFree: number;
  diskReserve: number;
  storeOctets: number;
  spool: number;
  spoolLimit: number;
}

/** The writer of a sync level. */
export interface WriterStatistics {
  level: string;
  waitingPosts: number;
  waitingOctets: number;
  commits: number;
  commitUs: number;
  lastCommitUs: number;
  messages: number;
  octets: number;
  failures: number;
  refusal: string | null;
}

/** Lines of the server's log. */
export interface Warnings {
  kind: "Warnings";
  list: { number: number; timeUs: number; level: string; logger: string; text: string }[];
}

export interface Topics {
  kind: "Topics";
  timeUs: number;
  list: TopicStatistics[];
}

export interface TopicStatistics {
  id: number;
  topic: string;
  delivery: DeliveryType;
  persistence: Persistence;
  messages: number;
  octets: number;
  first: bigint;
  last: bigint;
  subscribers: number;
  ready: number;
  unconfirmed: number;
  behind: number;
  messagesIn: number;
  octetsIn: number;
  messagesOut: number;
  octetsOut: number;
  waiting: number;
  failures: number;
  retentionOctets: number | null;
  retentionMs: number | null;
}

/** Topics that were deleted. */
export interface TopicsGone {
  kind: "Gone";
  ids: number[];
}

/** The end of a round. */
export interface Complete {
  kind: "Complete";
  timeUs: number;
}

// -- Connections and Subscribers --------------------------------------------------------------------------------------

export interface ConnectionInfo {
  id: number;
  client: string;
  peer: string;
  protocol: string;
  encrypted: boolean;
  age: number;
  octetsIn: number;
  octetsOut: number;
  unconfirmed: number;
  answers: number;
  subscriptions: number;
  behind: number;
  held: number;
  stalled: number | null;
  slow: string | null;
  furthest: SubscriptionInfo[];
}

/** A subscription of a connection. */
export interface SubscriptionInfo {
  topic: string;
  position: bigint | null;
  behind: number;
  credit: number | null;
  unconfirmed: number;
  octets: number;
}

export interface SubscriberInfo {
  connection: number;
  client: string;
  peer: string;
  protocol: string;
  position: bigint | null;
  behind: number;
  credit: number | null;
  unconfirmed: number;
  octets: number;
  stalled: number | null;
}
