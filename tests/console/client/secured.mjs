// Connects by TLS to a server with configured clients, and prints what becomes of it.

import { readFileSync } from "node:fs";

import { connectTcp } from "../../../omq/console/client/node.js";
import { take } from "./helpers.mjs";

const address = process.env.OMQ_ADDRESS;
const tls = { ca: readFileSync(process.argv[2]) };
const failure = (promise) => promise.then(() => "it succeeded", (error) => `${error.name}: ${error.message}`);

const wrong = await failure(connectTcp(address, { id: "alice:simsim", tls }));
const foreign = await failure(connectTcp(address, { id: "alice:sesame" }));
const client = await connectTcp(address, { id: "alice:sesame", tls });
await client.publish("prices", "1");
await client.confirm();
const mine = (await take(client.fetch("prices"), 1)).map((message) => message.text);
const theirs = await failure(client.subscribe("payments"));
const watched = await failure(take(client.watch(), 1));
await client.close();
console.log(JSON.stringify({ wrong, foreign, mine, theirs, watched }));
