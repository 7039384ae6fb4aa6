// Prints a module of TypeScript: what the server answers, each value with the type that is declared for it.

import { fresh, open } from "../client/helpers.mjs";

/** Write a value as TypeScript does. */
function literal(value) {
  if (typeof value === "bigint") return `${value}n`;
  if (value instanceof Uint8Array) return `new Uint8Array([${value}])`;
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{ ${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")} }`;
}

const client = await open({ id: "types" });
const [topic, queue, deleted] = ["topic", "queue", "deleted"].map(fresh);
await client.declare(topic, { persistence: "Strong" });
await client.declare(queue, { delivery: "Round_robin", persistence: "Transient" });
await client.declare(deleted);
await client.retain(topic, { octets: 1_000_000, ms: 1000 });
for (const each of [topic, queue]) await client.publish(each, "x");
await client.confirm();
const found = [
  ["TopicInfo[]", await client.topics()],
  ["BlockInfo[]", await client.blocks(topic, 1n)],
  ["Peeked[]", await client.peek(queue)],
];
await client.subscribe(topic);
await client.subscribe(queue, { credit: 5 });
const kinds = new Set();
for await (const value of client.watch(100)) {
  kinds.add(value.kind);
  found.push(["Statistics", value]);
  if (value.kind === "Complete") await client.delete(deleted).catch(() => {});
  if (kinds.has("Gone") && kinds.has("Warnings")) break;
}
found.push(["ConnectionInfo[]", await client.connections()]);
found.push(["SubscriberInfo[]", await client.subscribers(topic)], ["SubscriberInfo[]", await client.subscribers(queue)]);
await client.close();

const types = [...new Set(found.map(([type]) => type.replace("[]", "")))];
console.log(`import type { ${types.join(", ")} } from "omq-client";\n`);
found.forEach(([type, value], at) => console.log(`export const value${at}: ${type} = ${literal(value)};`));
