// Reads a topic of a restored backup: two messages, 2^32 ids without any, and one message.

import assert from "node:assert/strict";

import { open } from "./helpers.mjs";

const client = await open();
const gone = [];
const found = [];
for await (const message of client.fetch("restored", { onGone: (each) => gone.push(each) })) found.push(message);
const newest = found[2].id;
assert.deepEqual(found.map(({ id, text }) => [id, text]), [[1n, "old"], [2n, "older"], [newest, "new"]]);
assert.ok(newest > 2n ** 32n);
assert.equal(gone[0].first, 3n);
assert.equal(gone[gone.length - 1].last, newest - 1n);
assert.equal(await client.firstSince("restored", new Date(found[1].time / 1000 + 1)), newest);
await client.close();
console.log("done");
