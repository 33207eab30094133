// The order of attention.

import assert from "node:assert/strict";
import { test } from "node:test";

import heap from "../lib/heap.js";

test("the first is the earliest, whatever is changed and taken out", () => {
  let seed = 1;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  const order = new heap.Heap();
  const items = Array.from({ length: 40 }, () => ({}));
  const times = new Map();
  for (let i = 0; i < 20_000; i++) {
    const item = items[random(items.length)];
    const at = random(4) === 0 ? Infinity : random(50);
    order.set(item, at);
    times.set(item, at);
    const earliest = Math.min(...times.values());
    assert.equal(order.first?.at ?? Infinity, earliest);
  }
});
