// A program in TypeScript. The compiler must accept it, and would refuse each line below a comment about an error.

import { ConnectionLost, Refused, connect, keepConnected, printable } from "omq-client";
import type { Client, Gone, Message, Options, Statistics, TopicInfo } from "omq-client";
import { connectTcp } from "omq-client/node";
import { Session } from "omq-client/session";

const options: Options = { id: "alice:sesame", silence: 30, onError: (sentence) => console.error(sentence) };

async function publish(client: Client): Promise<void> {
  await client.declare("prices", { delivery: "Broadcast", persistence: "Strong" });
  await client.publish("prices", new Uint8Array([1, 2]));
  await client.confirm();
  await client.retain("prices", { octets: 1e9, ms: null });
  await client.retain("prices", undefined);
  // @ts-expect-error there is no such level
  await client.declare("prices", { persistence: "Durable" });
  // @ts-expect-error a body is a string or octets
  await client.publish("prices", { price: 1 });
  // @ts-expect-error limits must be given
  await client.retain("prices");
}

async function read(client: Client): Promise<bigint | undefined> {
  const gone = ({ first, last }: Gone): bigint => last - first;
  const subscription = await client.subscribe("prices", { from: 5n, whenFull: "skip", onGone: gone });
  for await (const message of subscription) {
    const id: bigint = message.id;
    console.log(id, message.text, message.json().price);
    break;
  }
  for await (const { time, head } of client.fetch("prices", { first: 1, count: 10n })) {
    // @ts-expect-error a message of a subscription has no time
    console.log(time.toFixed());
    console.log(head?.key, head?.properties["content-type"]);
  }
  const topics: TopicInfo[] = await client.topics();
  // @ts-expect-error ids are bigints
  const last: number | undefined = topics[0]?.last;
  // @ts-expect-error a client is made by connect
  new (await import("omq-client")).Client({});
  return last === undefined ? subscription.next : (await client.firstSince("prices", new Date()));
}

async function watch(client: Client): Promise<void> {
  for await (const value of client.watch(500)) tell(value);
  const [connection] = await client.connections();
  if (connection?.slow) await client.disconnect(connection.id);
}

function tell(value: Statistics): string {
  switch (value.kind) {
    case "Began":
      return `every ${value.period} ms`;
    case "Server":
      return value.writers.map(({ level, refusal }) => `${level} ${refusal ?? ""}`).join();
    case "Topics":
      return value.list.map(({ topic, messagesIn, retentionMs }) => `${printable(topic)} ${messagesIn} ${retentionMs}`).join();
    case "Warnings":
      return value.list.map(({ text }) => text).join();
    case "Gone":
      return value.ids.join();
    case "Complete":
      return String(value.timeUs);
  }
}

async function main(signal: AbortSignal): Promise<void> {
  const client = await connectTcp("omqs://localhost:7730", { ...options, tls: { ca: "..." } });
  try {
    await publish(client);
    await read(client);
    await watch(client);
  } catch (error) {
    if (error instanceof Refused) console.log(error.refusals.length, error.message);
    else if (!(error instanceof ConnectionLost)) throw error;
  }
  await client.close();
  const why: ConnectionLost | undefined = await client.closed;
  console.log(why?.message);
  await keepConnected((signal) => connect("ws://localhost:7730/ws", { signal }), {
    signal,
    onState: (state) => console.log(state.state === "lost" ? state.why.message : state.state),
    use: read,
  });
  const session = new Session("by hand");
  session.ask(1, "Topics");
  for (const event of session.receive(session.takeOutput())) if (event.kind === "message") show(event.message);
}

function show(message: Message): void {
  console.log(message.body.length);
}

await main(new AbortController().signal);
