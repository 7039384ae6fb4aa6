// The pages of stored messages in the console, without a server.

import assert from "node:assert/strict";
import { test } from "node:test";

import { PAGE, PAGE_OCTETS, startBefore } from "../../../omq/console/app/pages.js";

/** A source of messages with these ids, which lists at most `most` at a time, and counts the lists. */
function sourceOf(ids, { most = 100, octets = 1 } = {}) {
  const source = {
    asked: 0,
    async spans(first, end) {
      source.asked++;
      const within = ids.filter((id) => id >= first && id < end);
      return { spans: within.slice(0, most).map((id) => ({ first: id, count: 1, octets })), isWhole: within.length <= most };
    },
  };
  return source;
}

const range = (first, count, step = 1n) => Array.from({ length: count }, (_, at) => BigInt(first) + BigInt(at) * step);

test("a page before an id has its last messages, whatever lies between them", async () => {
  const far = 2 ** 40;
  for (const ids of [
    range(1, 1000),
    range(1, 30),
    range(1, 1000, 30n),
    [...range(1, 80), ...range(far, 10)],
    [...range(1, 5000), ...range(far, 10)],
    [...range(1, 5000), ...range(far, 10), ...range(3 * far, 45, 1000n)],
  ]) {
    const source = sourceOf(ids);
    const end = ids[ids.length - 1] + 1n;
    assert.equal(await startBefore(source, end, ids[0]), ids[Math.max(0, ids.length - PAGE)]);
    assert.ok(source.asked < 100, `${source.asked} lists`);
  }
});

test("a page before an id without messages before it begins with the oldest id", async () => {
  assert.equal(await startBefore(sourceOf([]), 7n, 7n), 7n);
  assert.equal(await startBefore(sourceOf([]), 1000n, 3n), 3n);
  assert.equal(await startBefore(sourceOf(range(10, 5)), 10n, 10n), 10n);
});

test("a page of long messages has as many as it has room for, and one at least", async () => {
  const ids = range(1, 100);
  assert.equal(await startBefore(sourceOf(ids, { octets: PAGE_OCTETS / 4 }), 101n, 1n), 97n);
  assert.equal(await startBefore(sourceOf(ids, { octets: 10 * PAGE_OCTETS }), 101n, 1n), 100n);
});
