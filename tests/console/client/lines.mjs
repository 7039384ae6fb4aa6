// Reads commands as JSON, a line each, and prints the line that the client sends for each, in hexadecimal.

import { createInterface } from "node:readline";

import { Bare, line } from "../../../omq/console/client/lib/sexp.js";
import { decodeName } from "../../../omq/console/client/omq.js";

const name = (hex) => decodeName(Buffer.from(hex, "hex"));
const replay = ({ replay, id }) => (id === undefined ? new Bare(replay) : [new Bare(replay), BigInt(id)]);

for await (const row of createInterface({ input: process.stdin })) {
  const command = JSON.parse(row);
  const parts = [];
  for (const [key, value] of Object.entries(command)) {
    if (key === "cmd") continue;
    else if (key === "from") parts.push(replay(value));
    else if (key === "delivery") parts.push(new Bare(value));
    else if (key === "persist") parts.push(value.sync ? [new Bare(value.persistence), new Bare(value.sync)] : new Bare(value.persistence));
    else parts.push(key === "topic" || key === "body" ? name(value) : BigInt(value));
  }
  console.log(Buffer.from(line(command.cmd, parts)).toString("hex"));
}
