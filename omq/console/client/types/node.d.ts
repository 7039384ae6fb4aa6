/** The types of the client in Node. */

import type { ConnectionOptions } from "node:tls";

import type { Client, Options } from "./omq.js";

export * from "./omq.js";

/** Connect by TCP, `omq://host:port`, or by TLS, `omqs://host:port`; `tls` has options of Node's TLS, such as `ca`. */
export function connectTcp(url: string, options?: Options & { tls?: ConnectionOptions }): Promise<Client>;
