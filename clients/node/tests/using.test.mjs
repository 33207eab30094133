// Work under locks: using, several locks, re-entrancy, elections, events, what others hold.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Denied, DistlockError, Held, Invalid, Locks, Lost, Unavailable } from "../distlock.mjs";
import { HELD, RENEWED, aborted, drop, eventually, grant, locksOf, problem, serve } from "./fake.mjs";

const LOST = [200, { index: 0, outcome: "lost" }];
const names = (server, call) => server.calls(call).map((b) => b.name);

/** Returns how long a server that forgets is to grant a lease of 60 s, so that it is renewed at once. */
const briefly = () => grant({ ttl_ms: 40_000 });

test("using returns what the work returns", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  assert.equal(await locksOf(server).using("x", () => 5), 5);
  assert.equal(await locksOf(server).using("x", { wait: 0 }, async (lease) => lease.name), "x");
  await assert.rejects(locksOf(server).using("x", async () => { throw new Error("of the work"); }), /of the work/);
  assert.equal(server.calls("release").length, 3);
});

test("using without a function makes no request", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  const locks = locksOf(server);
  for (const wrong of [["x"], ["x", { wait: 0 }], ["x", {}, 5], [["x"]]]) {
    await assert.rejects(locks.using(...wrong), (e) => e instanceof TypeError && /using wants a function/.test(e.message));
  }
  await assert.rejects(locks.elect("x"), /elect wants a function/);
  assert.equal(server.requests.length, 0);
});

test("a try", async (t) => {
  const server = await serve(t, { acquire: [HELD, grant()] });
  const locks = locksOf(server);
  assert.equal(await locks.tryLock("x"), null);
  await (await locks.tryLock("x")).release();
  assert.deepEqual(server.calls("acquire").map((b) => b.wait_ms), [0, 0]);
  await assert.rejects(locks.tryLock("x", { wait: 5 }), /there is no option "wait" here/);
});

test("await using releases, and says that the lock was lost", async (t) => {
  if (!Symbol.asyncDispose) return assert.ok(process.versions.node.startsWith("18."));
  const server = await serve(t, { acquire: [grant()], release: [[204], drop] });
  const locks = locksOf(server);
  const end = async (lease) => lease[Symbol.asyncDispose]();
  await end(await locks.lock("x"));
  assert.equal(server.calls("release").length, 1);
  await end(await locks.lock("x")); // its release has no answer
  server.answers.release = [problem(410, "lost")];
  await assert.rejects(end(await locks.lock("x")), Lost);
  server.answers.release = [[204]];
  await end(await locks.lockAll(["x", "y"]));
  assert.deepEqual(names(server, "release").slice(-2).sort(), ["x", "y"]);
});

test("a lease that has ended is used in no other await using", async (t) => {
  if (!Symbol.asyncDispose) return assert.ok(process.versions.node.startsWith("18."));
  const server = await serve(t, { acquire: [grant()] });
  const locks = locksOf(server);
  for (const lease of [await locks.lock("x"), await locks.lockAll(["x", "y"])]) {
    const begin = () => lease[Symbol.asyncDispose].bind(lease); // what the language does where a scope begins
    const [end, around] = [begin(), begin()];
    await lease.release(); // in the scope
    await end();
    assert.throws(begin, Lost);
    await assert.rejects(around, Lost); // it ran in part without the lock
    assert.throws(() => lease.check(), Lost);
  }
});

test("JSON, and copies", async (t) => {
  const server = await serve(t, { acquire: [grant({ fence: "9007199254740993" })], look: [[200, { name: "x", holders: [{ fence: "9007199254740993" }] }]] });
  const locks = locksOf(server);
  const lease = await locks.lock("x");
  const all = await locks.lockAll(["x", "y"]);
  const text = '{"name":"x","fence":"9007199254740993"}';
  assert.equal(JSON.stringify(lease), text);
  assert.equal(JSON.stringify(all), `[${text},${text.replace("x", "y")}]`);
  assert.equal(JSON.stringify(await locks.holder("x")), '{"fence":"9007199254740993","meta":{}}');
  for (const one of [lease, all]) assert.throws(() => structuredClone(one), { name: "DataCloneError" });
});

test("several locks are taken in the order of their bytes", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  const list = ["b", "\u{10000}", "a", "\uFFFD"]; // in UTF-16 the second is less than the last
  await locksOf(server).using(list, async (all) => {
    assert.deepEqual(all.leases.map((l) => l.name), ["a", "b", "\uFFFD", "\u{10000}"]);
    all.check();
    assert.ok(all.remaining > 0 && !all.signal.aborted);
  });
  assert.deepEqual(names(server, "acquire"), ["a", "b", "\uFFFD", "\u{10000}"]);
  assert.equal(server.calls("release").length, 4);
});

test("several locks or none", async (t) => {
  const server = await serve(t, { acquire: [grant(), HELD] });
  await assert.rejects(locksOf(server).lockAll(["b", "a"], { wait: 0 }), Held);
  assert.deepEqual(names(server, "release"), ["a"]);
  server.answers.acquire = [grant(), HELD];
  await assert.rejects(locksOf(server).lockAll(["d", "c"], { wait: 0, minHold: 3_600_000 }), Held);
  assert.deepEqual(names(server, "release"), ["a", "c"]); // what was not used needs no minimum hold
  for (const wrong of ["x", [], ["a", "a"], ["a", ""], [5]]) await assert.rejects(locksOf(server).lockAll(wrong), TypeError);
});

test("one of several is lost during the wait for the next", async (t) => {
  const server = await serve(t, { acquire: [briefly(), () => new Promise(() => {})], renew: [LOST] });
  await assert.rejects(locksOf(server).lockAll(["a", "b"], { ttl: 60_000 }), Lost);
  assert.deepEqual(names(server, "release"), ["b"]); // the wait
});

test("one of several is lost", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 60_000 }), briefly()], renew: [LOST] });
  const all = await locksOf(server).lockAll(["a", "b"], { ttl: 60_000 });
  await aborted(all.signal);
  assert.ok(all.signal.reason instanceof Lost);
  assert.throws(() => all.check(), Lost);
  await assert.rejects(all.release(), Lost);
  assert.deepEqual(names(server, "release"), ["a"]);
});

test("re-entrancy", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  const locks = locksOf(server);
  const again = { reentrant: true };
  let late;
  await locks.using("x", again, async (outer) => {
    await sleep(1);
    await locks.using("y", async () => locks.using("x", again, (inner) => assert.equal(inner, outer)));
    outer.check();
    await assert.rejects(locks.using("x", { mode: "read", ...again }, () => {}), Invalid);
    await locksOf(server).using("x", again, (other) => assert.notEqual(other, outer)); // another client
    late = sleep(20).then(() => locks.using("x", again, (other) => assert.notEqual(other, outer)));
  });
  await late; // it ran when the lock was released
  await locks.using("x", () => locks.using("x", again, (other) => other.check())); // the inner one says it
  assert.deepEqual(names(server, "acquire"), ["x", "y", "x", "x", "x"]);
  await assert.rejects(locks.lock("x", again), /reentrant is an option of using/);
  await assert.rejects(locks.using(["x"], again, () => {}), /reentrant is an option of using/);
});

test("what is lost is not entered again", async (t) => {
  const server = await serve(t, { acquire: [briefly()], renew: [LOST] });
  const locks = locksOf(server);
  const work = locks.using("x", { reentrant: true, ttl: 60_000 }, async (lease) => {
    await aborted(lease.signal);
    await locks.using("x", { reentrant: true }, () => assert.fail("entered"));
  });
  await assert.rejects(work, Lost);
});

test("an election", async (t) => {
  const server = await serve(t, { acquire: [briefly(), problem(403, "denied"), grant({ ttl_ms: 60_000, fence: "8" })], renew: [LOST] });
  const end = new AbortController();
  const terms = [];
  const lead = async (lease, signal) => {
    terms.push(lease.fence);
    if (terms.length > 1) setTimeout(() => end.abort(new Error("enough")), 10);
    await aborted(signal);
    throw new Error("the end of the term");
  };
  await assert.rejects(locksOf(server).elect("x", lead, { ttl: 60_000, signal: end.signal }), /enough/);
  assert.deepEqual(terms, [7n, 8n]); // after a loss, and a right that was withdrawn for a while
  assert.equal(server.calls("release").length, 1);
});

test("an election ends with an error of its leader, and with a right that was never there", async (t) => {
  const server = await serve(t, { acquire: [grant(), problem(403, "denied")] });
  await assert.rejects(locksOf(server).elect("x", async () => { throw new Error("of the leader"); }), /of the leader/);
  assert.equal(server.calls("release").length, 1);
  await assert.rejects(locksOf(server).elect("x", () => {}), Denied);
});

test("a leader that gives up stays away", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  const end = new AbortController();
  const times = [];
  const lead = () => {
    times.push(performance.now());
    if (times.length === 2) end.abort(new Error("enough"));
  };
  await assert.rejects(locksOf(server).elect("x", lead, { signal: end.signal }), /enough/);
  assert.ok(times[1] - times[0] >= 1_999);
  await eventually(() => server.calls("release").length === 2);
});

test("events", async (t) => {
  const server = await serve(t, { acquire: [HELD, grant(), HELD, grant()], release: [[204], problem(410, "lost")] });
  const events = [];
  const onEvent = (e) => {
    events.push(e);
    throw new Error("of the metrics");
  };
  const locks = new Locks(server.url, { onEvent });
  await locks.using("x", () => sleep(20));
  assert.equal(await locks.tryLock("x"), null);
  await assert.rejects(locks.using("x", () => {}), Lost);
  assert.deepEqual(events.map((e) => e.kind), ["waited", "taken", "released", "failed", "taken", "lost"]);
  assert.ok(events.every((e) => e.name === "x" && e.seconds >= 0) && events[2].seconds >= 0.019 && events[2].seconds < 1000);
});

test("what others hold", async (t) => {
  const holders = [{ mode: "exclusive", fence: "9007199254740993", held_ms: 5, left_ms: 7, meta: { pid: "5" } }, { mode: "read" }];
  const server = await serve(t, { look: [drop, [200, { name: "a/../ü b", holders }], [200, { name: "x", holders: [] }], problem(403, "denied")] });
  const locks = locksOf(server);
  assert.deepEqual(await locks.holder("a/../ü b"), { mode: "exclusive", fence: 9007199254740993n, held: 5, left: 7, meta: { pid: "5" } });
  assert.equal(server.requests[0].url, "/v1/locks/a%2F%2E%2E%2F%C3%BC%20b");
  assert.equal(await locks.locked("x"), false);
  await assert.rejects(locks.locked("x"), Denied);
  server.answers.look = [[200, { name: "x", holders: [] }]];
  assert.equal(await locks.holder("x"), null);
  await assert.rejects(locks.locked("y"), (e) => e instanceof Unavailable && /of another lock/.test(e.message)); // a path that was changed
  server.answers.look = [drop];
  await assert.rejects(locks.holder("x"), Unavailable);
});

test("one class of errors for import and require", async () => {
  const { createRequire } = await import("node:module");
  const required = createRequire(import.meta.url)("../distlock.js");
  assert.equal(required.Held, Held);
  assert.ok(new required.Lost("x") instanceof DistlockError);
});
