// Helpers of the tests of the ES module client. The server's address is in the environment.

import { connect, connectTcp } from "../../../omq/console/client/node.js";

const ADDRESS = process.env.OMQ_ADDRESS;

/** Connect as the address says: by WebSocket, by TCP or by TLS. */
export function open(options) {
  return ADDRESS.startsWith("ws") ? connect(ADDRESS, options) : connectTcp(ADDRESS, options);
}

let names = 0;

/** A topic's name that no other test uses. */
export function fresh(name) {
  return `${name} ${process.pid} ${++names}`;
}

/** Call a test with a client, and close it. */
export function withClient(test, options = {}) {
  return async () => {
    const client = await open({ id: "tester", ...options });
    try {
      await test(client);
    } finally {
      await client.close();
    }
  };
}

export async function take(iterable, count) {
  const found = [];
  if (!count) return found;
  for await (const each of iterable) {
    found.push(each);
    if (found.length === count) break;
  }
  return found;
}
