// The client against the real server, by TCP or by WebSocket.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ConnectionLost, MessageTooLong, Refused, TopicDeleted, connect, connectTcp, keepConnected } from "../../../omq/console/client/node.js";
import { fresh, open, take, withClient } from "./helpers.mjs";

const EVERY_OCTET = Uint8Array.from({ length: 256 }, (_, octet) => octet);

test("what is published is received, octet for octet", withClient(async (client) => {
  const topic = fresh("octets");
  await client.declare(topic);
  const subscription = await client.subscribe(topic);
  for (const body of ["hello", "", EVERY_OCTET, "zażółć"]) await client.publish(topic, body);
  await client.confirm();
  const found = await take(subscription, 4);
  assert.deepEqual(found.map((message) => message.id), [1n, 2n, 3n, 4n]);
  assert.deepEqual(found.map((message) => message.text).filter((_, at) => at !== 2), ["hello", "", "zażółć"]);
  assert.deepEqual(found[2].body, EVERY_OCTET);
}));

test("a topic's name may have any octets", withClient(async (client) => {
  const topic = Uint8Array.of(...EVERY_OCTET.subarray(128), process.pid & 255);
  await client.declare(topic);
  await client.publish(topic, "x");
  await client.confirm();
  assert.equal((await take(client.fetch(topic), 1))[0].text, "x");
  await client.delete(topic);
}));

test("a confirm tells why messages were refused", withClient(async (client) => {
  await client.publish("full", "1");
  await client.publish("full", "2");
  const refused = await client.confirm().then(assert.fail, (error) => error);
  assert.ok(refused instanceof Refused);
  assert.match(refused.refusals.join(), /the queue has its greatest length/);
  await client.confirm();
}));

test("each of two confirms in flight tells that a message was refused", withClient(async (client) => {
  await client.publish("full", "1");
  const outcomes = await Promise.allSettled([client.confirm(), client.confirm()]);
  assert.deepEqual(outcomes.map(({ reason }) => reason?.refusals.length), [1, 1]);
  await client.confirm();
}));

test("a slow reader misses nothing of a persistent topic, with a small buffer", withClient(async (client) => {
  const topic = fresh("slow");
  await client.declare(topic);
  const subscription = await client.subscribe(topic, { buffer: 20 });
  const publisher = await open();
  for (let at = 0; at < 500; at++) await publisher.publish(topic, `${at}`);
  await publisher.confirm();
  await publisher.close();
  let next = 0;
  for await (const message of subscription) {
    assert.equal(message.text, `${next}`);
    await client.confirm(); // answers come, however many messages wait
    if (++next === 500) break;
  }
  assert.equal(subscription.skipped, 0);
  assert.equal(subscription.next, 501n);
}));

test("a subscription that is left while it resumes is over for the server, too", withClient(async (client) => {
  const topic = fresh("left");
  await client.declare(topic);
  for (let at = 0; at < 100; at++) await client.publish(topic, `${at}`);
  await client.confirm();
  const subscription = await client.subscribe(topic, { from: "beginning", buffer: 10 });
  await client.confirm();
  await take(subscription, 5);
  await client.confirm();
  assert.deepEqual(await client.subscribers(topic), []);
}));

test("a slow reader is not given messages of another topic with the same name", withClient(async (client) => {
  const topic = fresh("made again");
  await client.declare(topic);
  for (let at = 0; at < 100; at++) await client.publish(topic, "first");
  await client.confirm();
  const subscription = await client.subscribe(topic, { from: "beginning", buffer: 10 });
  while ((await client.subscribers(topic)).length > 0); // it unsubscribes when its buffer is full
  await client.delete(topic);
  await client.declare(topic);
  for (let at = 0; at < 100; at++) await client.publish(topic, "second");
  await client.confirm();
  const bodies = [];
  await assert.rejects(async () => {
    for await (const message of subscription) bodies.push(message.text);
  }, { name: "TopicDeleted" });
  assert.deepEqual(bodies, Array(10).fill("first"));
  assert.deepEqual(await client.subscribers(topic), []);
  await (await client.subscribe(topic)).close();
}));

test("a slow reader of a transient topic learns how many messages it missed", withClient(async (client) => {
  const topic = fresh("transient");
  await client.declare(topic, { persistence: "Transient" });
  const subscription = await client.subscribe(topic, { buffer: 10 });
  const publisher = await open();
  for (let at = 0; at < 300; at++) await publisher.publish(topic, `${at}`);
  await publisher.confirm();
  await client.confirm();
  await take({ [Symbol.asyncIterator]: () => ({ next: subscription[Symbol.asyncIterator]().next }) }, 10);
  await client.confirm();
  await client.confirm(); // the subscription is live again
  await publisher.publish(topic, "last");
  const last = (await subscription[Symbol.asyncIterator]().next()).value;
  assert.equal(last.text, "last");
  assert.equal(subscription.skipped, 290);
  await publisher.close();
}));

test("a tail skips what has no room and counts it", withClient(async (client) => {
  const topic = fresh("tail");
  await client.declare(topic);
  const subscription = await client.subscribe(topic, { buffer: 10, whenFull: "skip" });
  for (let at = 0; at < 300; at++) await client.publish(topic, `${at}`);
  await client.confirm();
  while (subscription.skipped < 290) await client.confirm();
  assert.equal((await take(subscription, 10))[9].text, "9");
  assert.equal(subscription.skipped, 290);
}));

test("replay begins where it should, and tells what is missing", withClient(async (client) => {
  const topic = fresh("replay");
  await client.declare(topic);
  for (let at = 1; at <= 5; at++) await client.publish(topic, `${at}`);
  await client.confirm();
  for (const [from, expected] of [["beginning", "1,2,3,4,5"], [4n, "4,5"]]) {
    const found = await take(await client.subscribe(topic, { from }), expected.split(",").length);
    assert.equal(found.map((message) => message.text).join(), expected);
  }
  await assert.rejects(client.subscribe(topic, { from: 7n }), { name: "Refused", message: /there is no message 7 yet/ });
  await client.subscribe(topic);
  await assert.rejects(client.subscribe(topic), /subscribed to .* already/);
}));

test("a worker gets as many messages as it has credit, and confirms them", withClient(async (client) => {
  const topic = fresh("jobs");
  await assert.rejects(client.subscribe(topic, { credit: 2 }), { message: /there is no such topic/ });
  await client.delete(topic);
  await client.declare(topic, { delivery: "Round_robin" });
  for (let at = 0; at < 10; at++) await client.publish(topic, `${at}`);
  await client.confirm();
  assert.equal((await client.peek(topic, { first: 9n })).map(({ id, body }) => `${id} ${Buffer.from(body)}`).join(), "9 8,10 9");
  const found = await take(await client.subscribe(topic, { credit: 3 }), 4);
  assert.equal(found.map((message) => message.text).join(), "0,1,2,3");
  assert.equal((await client.topics()).find((each) => each.topic === topic).messages, 7); // the fourth was not done
  assert.equal(await client.purge(topic), 7);
}));

test("stored messages are fetched with their times and heads", withClient(async (client) => {
  const topic = fresh("stored");
  await client.declare(topic);
  for (let at = 0; at < 2500; at++) await client.publish(topic, `${at}`);
  await client.confirm();
  const found = await take(client.fetch(topic, { first: 11n, count: 2000 }), 5000);
  assert.equal(found.length, 2000);
  assert.ok(found.every((message, at) => message.id === BigInt(at + 11) && message.text === `${at + 10}`));
  assert.ok(Math.abs(found[0].time / 1e3 - Date.now()) < 60_000);
  assert.deepEqual(found[0].head, { exchange: "", key: "", properties: {} });
  assert.equal((await take(client.fetch(topic), 5000)).length, 2500);
  assert.deepEqual(await take(client.fetch(topic, { first: 2501n }), 1), []);
  assert.equal((await client.blocks(topic, 1n)).reduce((sum, block) => sum + block.count, 0), 2500);
  await assert.rejects(take(client.fetch(fresh("none")), 1), { name: "Refused" });
}));

test("topics have their types", withClient(async (client) => {
  const topic = fresh("types");
  await client.declare(topic, { delivery: "Round_robin", persistence: "Strong" });
  const { delivery, persistence, first, last } = (await client.topics()).find((each) => each.topic === topic);
  assert.deepEqual([delivery, persistence, first, last], ["Round_robin", "Strong", 0n, 0n]);
  await assert.rejects(client.declare(topic), { name: "Refused", message: /the topic exists as Round_robin/ });
}));

test("a subscription ends with its topic, and with its connection", withClient(async (client) => {
  const topic = fresh("deleted");
  const subscription = await client.subscribe(topic);
  const other = await open();
  await other.delete(topic);
  await assert.rejects(take(subscription, 1), TopicDeleted);
  const lost = await other.subscribe(topic);
  await other.close();
  assert.deepEqual(await take(lost, 1), []);
  await assert.rejects(other.topics(), ConnectionLost);
  assert.equal(await other.closed, undefined);
}));

test("what has no octets is refused before it is sent", withClient(async (client) => {
  const topic = fresh("typed");
  for (const wrong of [undefined, null, { t: 21.5 }, 21.5, true]) {
    await assert.rejects(client.publish(topic, wrong), TypeError);
  }
  for (const wrong of [undefined, null, { topic }, true]) {
    await assert.rejects(client.publish(wrong, "x"), TypeError);
    await assert.rejects(client.declare(wrong), TypeError);
    await assert.rejects(client.subscribe(wrong), TypeError);
  }
  await client.confirm();
  assert.deepEqual((await client.topics()).filter((each) => ["undefined", "null", topic].includes(each.topic)), []);
}));

test("a message that is too long for a line is refused before it is sent", withClient(async (client) => {
  const topic = fresh("long");
  await client.publish(topic, new Uint8Array(900_000));
  await assert.rejects(client.publish(topic, new Uint8Array(1_100_000)), MessageTooLong);
  await assert.rejects(client.publish(topic, new Uint8Array(600_000).fill(10)), MessageTooLong);
  await client.confirm();
  assert.equal((await take(client.fetch(topic), 1))[0].body.length, 900_000);
}));

test("a wrong argument is refused before anything is sent", withClient(async (client) => {
  const topic = fresh("arguments");
  await client.declare(topic);
  for (const from of ["begining", 1.5, NaN]) {
    await assert.rejects(client.subscribe(topic, { from }), { name: "TypeError", message: /^from is/ });
  }
  await assert.rejects(client.subscribe(topic, { whenFull: "drop" }), { name: "TypeError", message: /^whenFull is/ });
  await assert.rejects(take(client.fetch(topic, { first: "a" }), 1), { name: "TypeError", message: /^first is/ });
  await assert.rejects(take(client.fetch(topic, { count: 0.5 }), 1), { name: "TypeError", message: /^count is/ });
  for (const date of [new Date("no date"), 5]) await assert.rejects(client.firstSince(topic, date), { name: "TypeError" });
  await assert.rejects(connectTcp("omq://127.0.0.1:65536"), { name: "TypeError", message: /the form omq:/ });
  for (const period of [0, "x"]) {
    await assert.rejects(take(client.watch(period), 1), { name: "TypeError", message: /^period is/ });
  }
  const subscription = await client.subscribe(topic);
  await assert.rejects(client.subscribe(topic), { name: "AlreadyInUse" });
  await subscription.close();
}));

test("a name that no topic can have is refused before anything is sent", withClient(async (client) => {
  const wrongs = [
    ["", /^the topic's name is empty$/],
    [new Uint8Array(0), /is empty/],
    ["é".repeat(128), /^the topic's name has 256 octets, more than 255$/],
    [new Uint8Array(256), /256 octets/],
  ];
  for (const [wrong, message] of wrongs) {
    const calls = [
      () => client.publish(wrong, "x"),
      () => client.declare(wrong),
      () => client.delete(wrong),
      () => client.subscribe(wrong),
      () => client.subscribe(wrong, { credit: 1 }),
      () => take(client.fetch(wrong), 1),
      () => client.blocks(wrong, 1),
      () => client.firstSince(wrong, new Date()),
      () => client.peek(wrong),
      () => client.subscribers(wrong),
      () => client.purge(wrong),
      () => client.retain(wrong, { octets: 1 }),
    ];
    for (const call of calls) await assert.rejects(call(), { name: "RangeError", message }, String(call));
  }
  await client.confirm();
  const longest = `${fresh("longest").padEnd(251, "x")}éé`;
  await client.publish(longest, "x");
  await client.confirm();
  await client.delete(longest);
}));

test("ids and counts may be numbers", withClient(async (client) => {
  const topic = fresh("numbers");
  for (const body of ["1", "2", "3"]) await client.publish(topic, body);
  await client.confirm();
  assert.deepEqual((await take(client.fetch(topic, { first: 2, count: 1 }), 2)).map((each) => each.text), ["2"]);
  assert.equal((await take(await client.subscribe(topic, { from: 3 }), 1))[0].text, "3");
}));

test("an attempt to connect fails with the reason, or is given up", async () => {
  await assert.rejects(connectTcp("omq://127.0.0.1:1"), { name: "ConnectionLost", message: /ECONNREFUSED/ });
  await assert.rejects(open({ signal: AbortSignal.abort() }), { name: "AbortError" });
  await assert.rejects(connectTcp("http://localhost"), TypeError);
});

test("a WebSocket that tells nothing but an error fails", async () => {
  // As Node's own does before it is open.
  class Failing {
    constructor() {
      setTimeout(() => this.onerror?.({}), 1);
    }
    close() {}
  }
  const failed = { name: "ConnectionLost", message: "the server could not be reached" };
  await assert.rejects(connect("ws://127.0.0.1:1/ws", { WebSocket: Failing }), failed);
  if (globalThis.WebSocket) await assert.rejects(connect("ws://127.0.0.1:1/ws"), failed);
});

test("a lost connection is made again", async () => {
  const abort = new AbortController();
  const clients = [];
  const states = [];
  await keepConnected((signal) => open({ signal, silence: clients.length ? 100 : 0.05 }), {
    signal: abort.signal,
    onState: ({ state }) => states.push(state),
    use: (client) => clients.push(client) === 2 && abort.abort(),
  });
  // On a busy machine an attempt may last longer than the silence that ends the first connection.
  const made = states.join(" ").replace(/(connecting lost )+/g, "");
  assert.equal(made, "connecting connected lost connecting connected");
  assert.match((await clients[0].closed).message, /silent for 0.05 seconds/);
});

test("a use that throws is told, except the loss of its connection", async () => {
  const abort = new AbortController();
  const errors = [];
  let uses = 0;
  await keepConnected((signal) => open({ signal }), {
    signal: abort.signal,
    onError: (error) => errors.push(error.message),
    use: async (client) => {
      if (++uses === 2) {
        setTimeout(() => abort.abort());
        throw new Error("a mistake in use");
      }
      const subscription = await client.subscribe(fresh("lost"));
      const [{ connection }] = await client.subscribers(subscription.topic);
      void open().then(async (other) => {
        await other.disconnect(connection);
        await other.close();
      });
      for await (const message of subscription) assert.fail(message.text);
    },
  });
  assert.deepEqual(errors, ["a mistake in use"]);
});

test("an error that will not go away ends the attempts", async () => {
  const { signal } = new AbortController();
  const refused = () => connectTcp("omq://127.0.0.1:1");
  await assert.rejects(keepConnected(refused, { signal, use: assert.fail, isFinal: () => true }), ConnectionLost);
});

test("what happens is watched, and controlled", withClient(async (client) => {
  const topic = fresh("watched");
  await client.declare(topic);
  await client.publish(topic, "1");
  await client.confirm();
  const seen = [];
  let round = 0;
  for await (const value of client.watch(100)) {
    seen.push(value);
    if (value.kind === "Complete" && ++round === 2) break;
  }
  assert.deepEqual(seen.slice(0, 2).map(({ kind }) => kind), ["Began", "Server"]);
  assert.equal(seen[1].version.split(".").length, 3);
  assert.ok(seen[1].memory.every(({ used, limit }) => used <= limit));
  const info = seen.filter(({ kind }) => kind === "Topics").flatMap(({ list }) => list).find((each) => each.topic === topic);
  assert.deepEqual([info.persistence, info.last, info.messagesIn, info.retentionMs], ["Weak", 1n, 1, null]);

  const other = await open({ id: "the other" });
  await other.subscribe(topic);
  const [subscriber] = await client.subscribers(topic);
  assert.deepEqual([subscriber.client, subscriber.protocol, subscriber.position], ["the other", "omq", 2n]);
  const found = (await client.connections()).find(({ id }) => id === subscriber.connection);
  assert.deepEqual([found.client, found.encrypted, found.stalled, found.furthest[0].topic], ["the other", false, null, topic]);
  assert.equal(await client.disconnect(found.id), true);
  assert.ok((await other.closed) instanceof ConnectionLost);
  // The other one may see the end before the server has forgotten the connection.
  while ((await client.connections()).some(({ id }) => id === found.id));
  assert.equal(await client.disconnect(found.id), false);

  await client.retain(topic, { ms: 3_600_000 });
  const misspelt = /** @type {any} */ ({ seconds: 3_600 });
  await assert.rejects(client.retain(topic, misspelt), { name: "TypeError", message: /^limits are .*not seconds$/ });
  await client.retain(topic, undefined);
  assert.equal(await client.purge(topic), 1);
  await assert.rejects(take(client.watch(1), 1), { name: "Refused", message: /a period is 0, or/ });
}));

test("the first message since a time is found", withClient(async (client) => {
  const topic = fresh("times");
  await client.declare(topic);
  const times = [];
  for (let turn = 0; turn < 4; turn++) {
    for (let at = 0; at < 700; at++) await client.publish(topic, `${turn}`);
    await client.confirm();
  }
  for await (const { id, time } of client.fetch(topic)) times[Number(id)] = time;
  for (const id of [1, 700, 1500, 2800]) {
    const date = new Date(Math.ceil(times[id] / 1000));
    const expected = times.findIndex((time) => time >= date.getTime() * 1000);
    assert.equal(await client.firstSince(topic, date), expected < 0 ? undefined : BigInt(expected));
  }
  assert.equal(await client.firstSince(topic, new Date(0)), 1n);
  assert.equal(await client.firstSince(topic, new Date(4e12)), undefined);
}));
