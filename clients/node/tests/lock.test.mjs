// Taking locks.

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";

import { Denied, Held, Invalid, Locks, Lost, Unavailable } from "../distlock.mjs";
import { DEAD, HELD, RENEWED, STREAMS, TOKEN, aborted, drop, eventually, grant, hang, locksOf, oneOwner, problem, refused, serve } from "./fake.mjs";

test("takes and releases", async (t) => {
  const server = await serve(t, { acquire: [grant({ fence: "9007199254740993" })] });
  const locks = locksOf(server);
  const lease = await locks.using("x", { wait: 0 }, (l) => {
    assert.equal(l.fence, 9007199254740993n);
    assert.ok(l.remaining > 0 && l.remaining <= 29_000);
    l.check();
    return l;
  });
  assert.equal(lease.remaining, 0);
  assert.throws(() => lease.check(), Lost);
  assert.ok(!lease.signal.aborted);
  const [first, last] = server.requests.filter((r) => r.call !== "look"); // a slow machine may ask for a sign of life
  assert.deepEqual([first.call, last.call, first.headers.authorization], ["acquire", "release", `Bearer ${TOKEN}`]);
  assert.deepEqual([first.body.ttl_ms, first.body.wait_ms, first.body.mode, first.body.meta.pid], [30_000, 0, "exclusive", String(process.pid)]);
  assert.equal(last.headers["distlock-backend"], STREAMS ? undefined : "fake"); // the connection of calls was the first request
  assert.ok(![TOKEN, first.body.owner].some((s) => inspect([lease, locks], { depth: 9, showHidden: true }).includes(s)));
  oneOwner(server);
});

test("a semaphore and a reader", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  await locksOf(server).using("x", { limit: 3 }, () => {});
  await locksOf(server).using("x", { mode: "read" }, () => {});
  const modes = [...server.calls("acquire"), ...server.calls("release")].map((b) => [b.mode, b.limit]);
  assert.deepEqual(modes, [["counted", 3], ["read", undefined], ["counted", undefined], ["read", undefined]]);
});

test("held", async (t) => {
  const server = await serve(t, { acquire: [HELD] });
  const error = await refused(Held, server, { wait: 0 });
  assert.equal(error.holders[0].fence, 6n);
  assert.match(error.message, /job\? \(pid 5 on h\)/);
  assert.equal(server.calls("release").length, 0); // nothing was taken
});

test("a waiter that gives up leaves the queue", async (t) => {
  const server = await serve(t, { acquire: [HELD] });
  await refused(Held, server, { wait: 50 });
  assert.equal(server.calls("release").length, 1);
  oneOwner(server);
});

test("a waiter that is aborted leaves the queue", async (t) => {
  const server = await serve(t, { acquire: [hang] });
  const abort = new AbortController();
  const waits = locksOf(server).lock("x", { signal: abort.signal });
  await eventually(() => server.calls("acquire").length > 0);
  abort.abort(new Error("enough"));
  await assert.rejects(waits, /enough/);
  assert.equal(server.calls("release").length, 1);
  oneOwner(server);
});

test("waiting without end is many polls by one owner", async (t) => {
  const server = await serve(t, { acquire: [HELD, HELD, grant()] });
  await (await locksOf(server).lock("x")).release();
  assert.deepEqual(server.calls("acquire").map((b) => b.wait_ms), [20_000, 20_000, 20_000]);
  oneOwner(server);
});

test("an owner that was released makes no other attempt", async (t) => {
  const spent = problem(423, "held", { spent: true });
  let server = await serve(t, { acquire: [spent, spent, grant()] });
  await (await locksOf(server).lock("x")).release();
  const owners = server.calls("acquire").map((b) => b.owner);
  assert.equal(new Set(owners).size, 3);
  assert.deepEqual(server.calls("release").map((b) => b.owner), owners.slice(2));
  server = await serve(t, { acquire: [spent] });
  await refused(Held, server, { wait: 50 });
  assert.equal(server.calls("release").length, 0); // nothing was taken
});

test("an owner that was released perhaps is released again", async (t) => {
  for (const first of [[drop, problem(423, "held", { spent: true })], [problem(504, "unknown", { spent: true })]]) {
    const server = await serve(t, { acquire: [...first, grant()] });
    await (await locksOf(server).lock("x")).release();
    const owners = server.calls("acquire").map((b) => b.owner);
    assert.equal(new Set(owners).size, 2);
    assert.deepEqual(server.calls("release").map((b) => b.owner), [owners[0], owners.at(-1)]);
  }
});

test("final errors", async (t) => {
  for (const [status, kind, error] of [[400, "invalid", Invalid], [501, "unsupported", Invalid], [403, "denied", Denied]]) {
    await refused(error, await serve(t, { acquire: [problem(status, kind)] }));
  }
  await refused(Denied, await serve(t, { acquire: [problem(401, "denied")] }, { backend: null }));
});

test("an acquire without answer is repeated", async (t) => {
  const server = await serve(t, { acquire: [drop, grant()] });
  await (await locksOf(server).lock("x", { wait: 0 })).release();
  assert.equal(server.calls("acquire").length, 2);
  oneOwner(server);
});

test("giving up releases", async (t) => {
  const server = await serve(t, { acquire: [drop] });
  await refused(Unavailable, server, { wait: 0 });
  assert.equal(server.calls("release").length, 1);
  oneOwner(server);
});

test("a grant that comes too late is not used", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 1 }), grant({ fence: "8" })] });
  await locksOf(server).using("x", {}, (lease) => assert.equal(lease.fence, 8n));
  oneOwner(server);
});

test("an aborted wait leaves no listener", async (t) => {
  const server = await serve(t, { acquire: [grant(), HELD] });
  const { signal } = new AbortController();
  const locks = locksOf(server);
  await (await locks.lock("x", { signal })).release();
  await assert.rejects(locks.lock("x", { wait: 10, signal }), Held);
  await assert.rejects(locks.lockAll(["x", "y"], { wait: 10, signal }), Held);
  await eventually(() => getEventListeners(signal, "abort").length === 0);
  const end = new AbortController();
  const many = Array.from({ length: 15 }, () => locks.lock("x", { signal: end.signal }).catch(() => {}));
  await eventually(() => getEventListeners(end.signal, "abort").length > 0);
  assert.equal(getEventListeners(end.signal, "abort").length, 1); // Node warns of more than ten
  end.abort();
  await Promise.all(many);
});

test("a signal that was aborted before makes no request", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  await assert.rejects(locksOf(server).lock("x", { signal: AbortSignal.abort(new Error("enough")) }), /enough/);
  assert.equal(server.requests.length, 0);
});

test("wrong arguments", async () => {
  for (const url of ["redis://h", "http://user:hidden@h", "localhost:1", "http+unix://h/s", "unix:/s", "http://h?a=b", "http+unix:///%zz", "no URL"]) {
    assert.throws(() => new Locks(url), (e) => e instanceof TypeError && !inspect(e).includes("hidden"));
  }
  for (const token of ["a\nb", "ü", ""]) assert.throws(() => new Locks("http://h", { token }), TypeError);
  assert.throws(() => new Locks([]), TypeError);
  for (const connections of [1, 0, 2.5, "9"]) assert.throws(() => new Locks("http://h", { connections }), TypeError);
  assert.throws(() => new Locks("http://h", { tokn: "x" }), /no option "tokn" here: want token,/);
  assert.throws(() => new Locks("http://h", { token: "x", tokenFile: "y" }), /want one of them/);
  assert.throws(() => new Locks("http://h", { certFile: "x" }), /keyFile belong together/);
  assert.throws(() => new Locks("http://h", { tokenFile: "/no/such/file" }), /no.such.file/);
  const locks = new Locks("http://h");
  const wrong = [
    { wait: -1 }, { TTL: 5 }, { mode: 5 }, { mode: "counted" }, { limit: 0 }, { limit: 1.5 }, { limit: 2, mode: "read" }, { minHold: -1 },
    { mode: "shared" }, { ttl: 30 }, { minHold: 60 }, { ttl: 8 * 3_600_000 }, { ttl: "30000" }, { ttl: null }, { wait: "5" }, { wait: null }, { wait: NaN }, { minHold: "1" },
    { minHold: 40_000, renew: false }, { renew: "no" }, { meta: { a: 5 } }, { onLost: 5 }, { signal: {} }, null, 5, "x", [],
  ];
  for (const options of wrong) await assert.rejects(locks.lock("x", options), TypeError, JSON.stringify(options));
  for (const name of ["", undefined, 5, "half a pair \ud800"]) await assert.rejects(locks.lock(name), TypeError);
  for (const [options, hint] of [[{ ttl: 30 }, /30000 for 30 s/], [{ mode: "shared" }, /read/], [{ timeout: 5 }, /want wait$/], [{ retryCount: 3 }, /want wait$/],
    [{ duration: 5 }, /want ttl$/], [{ leaseTime: 5 }, /want ttl$/], [{ blocking: false }, /tryLock/], [{ constructor: 5 }, /want ttl, wait/]]) {
    await assert.rejects(locks.lock("x", options), hint);
  }
  await assert.rejects(locks.lock(""), /name of the lock is empty/);
  assert.throws(() => new Locks("localhost:7077"), /"localhost:7077": want one such as http:\/\//);
  assert.throws(() => new Locks("redis://user:p@ss/w@host?x=y"), /"redis:\/\/…@host\?…"/);
  for (const ttl of [0, -1, NaN, Infinity]) await assert.rejects(new Locks("http://h").lock("x", { ttl }), TypeError);
});

test("what answers, and is no server of locks, is named", async (t) => {
  const server = await serve(t, { acquire: [[404, {}]] }, { mixedUp: true });
  await assert.rejects(new Locks(`${server.url}/path`).tryLock("x"), (e) => e instanceof Unavailable && e.message.endsWith("/path: status 404, and not from a distlock server"));
  await assert.rejects(new Locks(server.url.replace("http", "https")).tryLock("x"), /EPROTO: it speaks no TLS: want http:/);
});
