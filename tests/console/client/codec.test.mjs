// The parts of the client that need no server.

import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { mock, test } from "node:test";

import * as omq from "../../../omq/console/client/omq.js";
import { Client } from "../../../omq/console/client/lib/client.js";
import { FrameDecoder, readTopic } from "../../../omq/console/client/lib/frames.js";
import { line, parse } from "../../../omq/console/client/lib/sexp.js";
import { readStatistics } from "../../../omq/console/client/lib/statistics.js";
import { Watcher } from "../../../omq/console/client/lib/watcher.js";
import { Session } from "../../../omq/console/client/lib/session.js";
import { connectTcp } from "../../../omq/console/client/node.js";

const { decodeBlock, decodeHead, decodeName, encodeName, printable } = omq;

const octets = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const hex = (bytes) => Buffer.from(bytes).toString("hex");
const recorded = (name) =>
  readFileSync(new URL(`../../data/sexp/${name}`, import.meta.url), "utf8").trim().split("\n").map((row) => JSON.parse(row));

test("topics that OCaml printed are read", () => {
  const rows = recorded("topics.jsonl");
  assert.ok(rows.length > 100);
  for (const { id, topic, mach } of rows) {
    const found = readTopic(octets(mach));
    assert.equal(found.id, id);
    assert.equal(hex(encodeName(found.topic)), topic);
  }
});

test("every name gives the same octets again", () => {
  const every = Uint8Array.from({ length: 256 }, (_, octet) => octet);
  assert.equal(hex(encodeName(decodeName(every))), hex(every));
  for (const name of ["efbbbf61", "eda080", "f09f9880ff", "c3", "e282", "f0808080"]) {
    assert.equal(hex(encodeName(decodeName(octets(name)))), name);
  }
  assert.equal(decodeName(octets("c3bc")), "ü");
  assert.throws(() => encodeName("\ud800"), TypeError);
});

test("octets that are no UTF-8 are escaped, and the characters between them are read", () => {
  const lenient = new TextDecoder("utf-8", { ignoreBOM: true });
  const escaped = (text) => text.replace(/[\udc80-\udcff]/g, "\ufffd");
  for (let first = 0x7f; first < 0x100; first++) {
    for (let second = 0x7f; second < 0x100; second++) {
      for (const tail of [[], [0x41], [0x80], [0xbf, 0x80], [0xbf, 0xc3, 0xa9], [0x80, 0x80, 0x80]]) {
        const name = Uint8Array.of(0x61, first, second, ...tail);
        const found = decodeName(name);
        assert.deepEqual(encodeName(found), name);
        // A decoder makes one U+FFFD of several octets.
        assert.equal(escaped(found).replace(/\ufffd+/g, "\ufffd"), lenient.decode(name).replace(/\ufffd+/g, "\ufffd"));
      }
    }
  }
});

test("a long binary body is decoded without an exception for each octet", (context) => {
  let failures = 0;
  const { decode } = TextDecoder.prototype;
  context.mock.method(TextDecoder.prototype, "decode", function (...given) {
    try {
      return decode.apply(this, given);
    } catch (error) {
      failures++;
      throw error;
    }
  });
  const body = Uint8Array.from({ length: 4096 }, (_, at) => (at * 37) % 256);
  assert.deepEqual(encodeName(decodeName(body)), body);
  assert.ok(failures <= 1, `${failures} exceptions`);
});

test("a name for people has no characters that disguise it", () => {
  assert.equal(printable("a\u202eb\u0000\udcff\u200b"), "a\\u202eb\\x00\\xff\\u200b");
  assert.equal(printable("zażółć 😀 <b>"), "zażółć 😀 <b>");
  assert.equal(printable(" "), "\\x20");
  assert.equal(printable("\u3164"), "\\u3164");
  assert.equal(printable(" \u00a0 a b  c\u3000"), "\\x20\\xa0\\x20a b  c\\u3000");
});

test("sexps that are not complete are refused", () => {
  for (const bad of ["", "(", ")", "(a))", '"a', "a b", "(a ;b)", "(".repeat(101) + ")".repeat(101)]) {
    assert.throws(() => parse(new TextEncoder().encode(bad)), /the server sent a sexp/, bad);
  }
});

test("a field may have the name of a property that every object has", () => {
  const found = readStatistics(new TextEncoder().encode("(Server(constructor 1)(__proto__ 2)(hasOwnProperty 3)(uptime 4))"));
  assert.deepEqual(Object.entries(found), [["kind", "Server"], ["constructor", 1], ["_Proto__", 2], ["hasOwnProperty", 3], ["uptime", 4]]);
});

test("frames are the same however the octets are divided", () => {
  const frames = [];
  for (const size of [0, 1, 11, 200, 70_000]) {
    const frame = new Uint8Array(5 + size).fill(size & 255);
    new DataView(frame.buffer).setUint32(0, size + 1);
    frame[4] = 200;
    frames.push(...frame);
  }
  const all = Uint8Array.from(frames);
  for (const piece of [1, 3, 4, 5, 7, 1000, all.length]) {
    const decoder = new FrameDecoder();
    const sizes = [];
    for (let at = 0; at < all.length; at += piece) {
      for (const { type, payload } of decoder.push(all.subarray(at, at + piece))) {
        assert.equal(type, 200);
        assert.ok(payload.every((octet) => octet === (payload.length & 255)));
        sizes.push(payload.length);
      }
    }
    assert.deepEqual(sizes, [0, 1, 11, 200, 70_000], `pieces of ${piece}`);
  }
});

test("a frame without a type or longer than any is refused", () => {
  for (const length of ["00000000", "80000001"]) {
    assert.throws(() => [...new FrameDecoder().push(octets(length))], /a frame of/);
  }
});

test("the block of PROTOCOL.md is read, and a changed one refused", () => {
  const block = octets(
    "6f6d714201000000ee fa1d6c 00000000 0000000000000001 00060a24181e4000 00000003 00000045 0000000000000000".replaceAll(" ", "") +
      "00000000170000002e00000045000000" +
      "000000130200000000000000010000000062 6f64792031".replaceAll(" ", "") +
      "0000001302000000000000000200000000626f64792032" +
      "0000001302000000000000000300000000626f64792033",
  );
  const { first, messages } = decodeBlock(block);
  assert.equal(first, 1n);
  assert.deepEqual(messages.map((message) => [message.id, message.text, message.time]), [
    [1n, "body 1", 1_700_000_000_000_000],
    [2n, "body 2", 1_700_000_000_000_000],
    [3n, "body 3", 1_700_000_000_000_000],
  ]);
  for (let at = 0; at < block.length; at++) {
    const changed = block.slice();
    changed[at] ^= 1;
    assert.throws(() => decodeBlock(changed), { name: "BrokenBlock" }, `octet ${at}`);
  }
  for (let size = 0; size < block.length; size++) {
    assert.throws(() => decodeBlock(block.subarray(0, size)), { name: "BrokenBlock" });
  }
});

test("a head is read with all its properties", () => {
  // The example of PROTOCOL.md, "Envelopes": a table with an integer and a string.
  const { exchange, key, properties } = decodeHead(octets("0673746f636b73 0461636d65 2000 00000013 016e4900000007 0173530000000573 6576656e".replaceAll(" ", "")));
  assert.equal(exchange, "stocks");
  assert.equal(key, "acme");
  assert.deepEqual({ ...properties.headers }, { n: 7, s: "seven" });
  assert.throws(() => decodeHead(octets("00000001")), /properties that cannot be read/);
  assert.throws(() => decodeHead(octets("0000200000000013")), /properties that cannot be read/);
});

test("every type of a table's values is read", () => {
  const entries = [
    ["S", "00000001" + "61", "a"],
    ["x", "00000001" + "ff", Uint8Array.of(255)],
    ["I", "ffffffff", -1],
    ["i", "ffffffff", 2 ** 32 - 1],
    ["D", "02" + "0000007b", 1.23],
    ["T", "0000000000000001", new Date(1000)],
    ["t", "01", true],
    ["b", "ff", -1],
    ["B", "ff", 255],
    ["s", "ffff", -1],
    ["U", "ffff", -1],
    ["u", "ffff", 65_535],
    ["l", "ffffffffffffffff", -1n],
    ["L", "7fffffffffffffff", 2n ** 63n - 1n],
    ["f", "3fc00000", 1.5],
    ["d", "3ff8000000000000", 1.5],
    ["V", "", null],
    ["A", "00000002" + "5656", [null, null]],
  ];
  for (const [type, value, expected] of entries) {
    const table = "0161" + Buffer.from(type).toString("hex") + value;
    const size = (table.length / 2).toString(16).padStart(8, "0");
    const { properties } = decodeHead(octets("00002000" + size + table));
    assert.deepEqual(properties.headers.a, expected, type);
  }
  const nested = (depth) => {
    let table = "";
    for (let at = 0; at < depth; at++) table = "00" + "46" + (table.length / 2).toString(16).padStart(8, "0") + table;
    return "00002000" + (table.length / 2).toString(16).padStart(8, "0") + table;
  };
  assert.ok(decodeHead(octets(nested(31))));
  assert.throws(() => decodeHead(octets(nested(32))), /cannot be read/);
});

test("a session tells which command an Error answers", () => {
  const session = new Session("me");
  session.ask("subscribed", "Subscribe", "a topic", "From_current");
  session.ask("deleted", "Delete", "prices");
  session.ask("fetched", "Fetch", "prices", 1n, 2n);
  const error = (text) => {
    const payload = new TextEncoder().encode(text);
    const frame = new Uint8Array(5 + payload.length);
    new DataView(frame.buffer).setUint32(0, payload.length + 1);
    frame.set(payload, 5);
    return frame;
  };
  const events = (frame) => [...session.receive(frame)];
  assert.deepEqual(events(octets("0000000000000001")), [{ kind: "accepted" }]);
  assert.equal(events(error("Publish prices: no"))[0].kind, "told");
  const [gone] = events(error('Subscribe "a topic": messages 1 to 3 are gone: they are no longer kept'));
  assert.deepEqual(gone.gone, {
    constructor: "Subscribe", topic: "a topic", first: 1n, last: 3n, reason: "they are no longer kept",
  });
  assert.equal(events(error("Fetch prices: there is no such topic"))[0].token, "fetched");
  assert.equal(events(error("Delete prices: not yet its turn"))[0].kind, "told");
  assert.equal(events(error('Subscribe "a topic": this client may not subscribe to it'))[0].token, "subscribed");
  assert.equal(events(error("Delete prices: there is no such topic"))[0].token, "deleted");
  assert.equal(events(error("the server reports a problem"))[0].kind, "told");
  assert.throws(() => events(octets("0000000208" + "00")), /a block that nobody fetched/);
});

test("a session answers a Ping and skips frames of later servers", () => {
  const session = new Session("me");
  session.takeOutput();
  const all = [...session.receive(octets("0000000000000001" + "0000000501" + "5f5e1000" + "00000003c80000"))];
  assert.deepEqual(all.map((event) => event.kind), ["accepted"]);
  assert.match(Buffer.from(session.takeOutput()).toString(), /^\(Ack "\d{4}-\d\d-\d\dT[\d:.]+Z"\)\n$/);
});

test("a server of another kind is refused", () => {
  const session = new Session("me");
  assert.throws(() => [...session.receive(octets("485454502f312e31"))], /it is no omq server/);
});

test("the line of a command", () => {
  const written = (...parts) => Buffer.from(line(...parts)).toString("latin1");
  assert.equal(written("Topics", []), "Topics\n");
  assert.equal(written("Publish", ['a"b', Uint8Array.of(0, 10, 13, 92, 255)]), '(Publish "a\\"b" "\0\\n\\r\\\\\xff")\n');
  assert.equal(written("Confirm", [2n ** 63n - 1n]), "(Confirm 9223372036854775807)\n");
  assert.throws(() => written("Confirm", [2 ** 60]), RangeError);
});

test("the document names every error of the client", () => {
  const readme = readFileSync(new URL("../../../omq/console/client/README.md", import.meta.url), "utf8");
  const table = readme.split("## Errors")[1].split("## ")[0];
  const named = [...table.matchAll(/^\| `(\w+)`/gm)].map(([, name]) => name);
  const errors = Object.entries(omq).filter(([, each]) => each.prototype instanceof omq.OmqError).map(([name]) => name);
  assert.deepEqual(named.sort(), errors.sort());
});

test("who does not take the values of watch gets an error of the client", async () => {
  const watcher = new Watcher();
  for (let at = 0; at <= 10_000; at++) watcher.take({ kind: "Complete" });
  await assert.rejects(watcher.values().next(), omq.WatchOverflow);
});

/** The beginning of a server's answer: it speaks version one, and confirms what `Client.open` asks for. */
const ACCEPTED = octets("0000000000000001" + "00000009060000000000000001");

test("a callback that throws loses no frame", async () => {
  let handlers;
  const transport = { write() {}, unsent: () => 0, close() {}, abort() {} };
  const mistake = () => {
    throw new Error("a mistake in a callback");
  };
  const opening = Client.open(async (given) => ((handlers = given), transport), { onError: mistake });
  await new Promise(setImmediate);
  handlers.data(ACCEPTED);
  const client = await opening;
  const subscribing = client.subscribe("t", { onGone: mistake });
  const gone = Buffer.from("Subscribe t: messages 1 to 2 are gone: x");
  const told = Buffer.from("Publish t: no");
  const frame = (type, payload) => Buffer.concat([Buffer.of(0, 0, 0, payload.length + 1, type), payload]);
  await new Promise(setImmediate);
  handlers.data(frame(3, Buffer.from("((id 0)(topic t))")));
  await subscribing;
  const written = mock.method(console, "error", () => {});
  try {
    const confirming = client.confirm();
    handlers.data(Buffer.concat([frame(0, told), frame(0, gone), octets("00000009060000000000000002")]));
    await confirming;
  } finally {
    written.mock.restore();
  }
  const errors = written.mock.calls.map((call) => call.arguments[0].message);
  assert.deepEqual(errors, ["a mistake in a callback", "a mistake in a callback"]);
});

/** The part of a client that `keepConnected` uses. */
class FakeClient {
  constructor() {
    this.isClosed = false;
    this.closed = new Promise((resolve) => (this.tell = resolve));
  }
  close() {
    this.isClosed = true;
    this.tell(undefined);
  }
}

test("a client that is made after the end of the attempts is closed", async () => {
  const abort = new AbortController();
  const client = new FakeClient();
  const open = async () => {
    abort.abort(); // while `open` does something that does not look at the signal
    return client;
  };
  await omq.keepConnected(open, { signal: abort.signal, use: assert.fail });
  assert.ok(client.isClosed);
});

test("a client is closed when a hook throws", async () => {
  const client = new FakeClient();
  const { signal } = new AbortController();
  const onState = ({ state }) => assert.notEqual(state, "connected");
  await assert.rejects(omq.keepConnected(async () => client, { signal, use: () => {}, onState }), assert.AssertionError);
  assert.ok(client.isClosed);
});

test("a connection that is closed is given up when the network takes nothing", async () => {
  const server = createServer({ pauseOnConnect: true }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const accepting = once(server, "connection");
  const opening = connectTcp(`omq://127.0.0.1:${server.address().port}`);
  const [socket] = await accepting;
  socket.write(ACCEPTED);
  const client = await opening;
  const [body, count] = ["x".repeat(500_000), 60];
  for (let sent = 0; sent < count; sent++) client.publish("t", body).catch(() => {});
  await new Promise(setImmediate);
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    await client.close();
    mock.timers.tick(10_000);
  } finally {
    mock.timers.reset();
  }
  let received = 0;
  socket.on("data", (data) => (received += data.length));
  socket.on("error", () => {}); // the other side has gone
  socket.resume();
  await once(socket, "close");
  assert.ok(received < count * body.length);
  server.close();
});
