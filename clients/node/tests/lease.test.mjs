// What becomes of a lease.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Denied, Held, Invalid, Locks, Lost, Unavailable } from "../distlock.mjs";
import { DEAD, HELD, RENEWED, TOKEN, aborted, drop, eventually, grant, hang, locksOf, oneOwner, problem, refused, serve } from "./fake.mjs";

// A lease of 12 s whose server grants 1.5 s is lost in half a second, and renewed at once.
test("loss is noticed while a renewal hangs", async (t) => {
  let answer;
  const renew = () => new Promise((resolve) => (answer = () => resolve(RENEWED)));
  const server = await serve(t, { acquire: [grant({ ttl_ms: 1_500 })], renew: [renew] });
  const start = performance.now();
  const lease = await locksOf(server).lock("x", { ttl: 12_000 });
  await aborted(lease.signal);
  assert.ok(performance.now() - start >= 499);
  assert.ok(lease.signal.reason instanceof Lost);
  assert.throws(() => lease.check(), Lost);
  await assert.rejects(lease.release(), Lost);
  await eventually(() => server.calls("release").length > 0); // the backend may have it for longer
  answer?.(); // too late; a busy machine may not have asked
  await sleep(10);
  assert.equal(lease.remaining, 0);
  assert.throws(() => lease.check(), Lost);
});

test("loss is noticed before a renewal times out", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 2_500 }), grant({ ttl_ms: 11_000 })], renew: [hang] });
  const lease = await locksOf(server).lock("x", { ttl: 12_000 }); // is lost in 1.5 s; its renewal times out in 4 s
  const clock = await locksOf(server).lock("clock", { ttl: 12_000 }); // is renewed in 3 s
  await aborted(lease.signal);
  assert.deepEqual(server.calls("renew").map((b) => b.holds[0].name), ["x"]);
  await clock.release();
});

test("loss is noticed where no timer could run", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 300 })], renew: [RENEWED] });
  const lease = await locksOf(server).lock("x", { ttl: 300 });
  while (lease.remaining > 0);
  assert.throws(() => lease.check(), Lost);
  assert.ok(lease.signal.aborted);
});

test("a renewal that is answered too late revives nothing", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 1_500 })], renew: [() => sleep(700, RENEWED)] });
  const real = globalThis.setTimeout; // the timer of the deadline, in half a second, comes late
  t.mock.method(globalThis, "setTimeout", (f, ms, ...more) => real(f, ms > 0 && ms <= 500 ? 5_000 : ms, ...more));
  const lease = await locksOf(server).lock("x", { ttl: 12_000 });
  await eventually(() => server.calls("renew").length > 0 || lease.remaining === 0);
  await sleep(800); // were that too short, the test would only see less
  assert.equal(lease.remaining, 0);
  assert.throws(() => lease.check(), Lost);
});

test("a stated loss", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 40_000 })], renew: [[200, { index: 0, outcome: "lost" }]] });
  const work = (lease) => new Promise((resolve) => lease.signal.addEventListener("abort", resolve));
  await assert.rejects(locksOf(server).using("x", { ttl: 60_000 }, work), Lost);
  assert.equal(server.calls("release").length, 0);
});

test("renewal", async (t) => {
  const renew = [drop, [410, {}], problem(410, "lost"), [200, { index: 0, outcome: "unknown" }], RENEWED];
  const server = await serve(t, { acquire: [grant({ ttl_ms: 8_100 })], renew }); // at once, for 12 s
  await locksOf(server).using("x", { ttl: 12_000 }, async (lease) => {
    await eventually(() => lease.signal.aborted || lease.remaining > 9_000); // with the margin, the grant's was 7.1 s
    lease.check();
    assert.ok(lease.remaining <= 11_000);
  });
  assert.equal(server.calls("release").length, 1);
});

test("renewal by the next server", async (t) => {
  for (const outcome of ["unknown", "unsent"]) {
    const bad = await serve(t, { acquire: [grant({ ttl_ms: 40_000 })], renew: [[200, { index: 0, outcome }]] });
    const good = await serve(t, { renew: [RENEWED] });
    await locksOf(bad, good).using("x", { ttl: 60_000 }, async (lease) => {
      await eventually(() => lease.signal.aborted || good.calls("renew").length > 0);
      lease.check();
    });
  }
});

test("trust counts from before the request", async (t) => {
  const late = (answer) => () => sleep(510, answer);
  const slow = await serve(t, { acquire: [late(grant({ ttl_ms: 8_100 }))], renew: [late(RENEWED)] });
  await locksOf(slow).using("x", { ttl: 12_000 }, async (lease) => { // is renewed at once
    assert.ok(lease.remaining <= 7_100 - 500);
    await eventually(() => lease.signal.aborted || lease.remaining > 8_000);
    lease.check();
    assert.ok(lease.remaining <= 11_000 - 500);
  });
});

test("trust counts from the end of the wait", async (t) => {
  const [status, body] = grant();
  const late = await serve(t, { acquire: [() => sleep(510, [status, { ...body, waited_ms: 400 }])] });
  const start = performance.now();
  await locksOf(late).using("x", {}, (lease) => {
    const left = lease.remaining;
    assert.ok(left <= 29_400 - 500);
    assert.ok(left + performance.now() - start >= 29_400);
  });
  // A wait that was longer than the whole call is not believed.
  const liar = await serve(t, { acquire: [[status, { ...body, waited_ms: 20_000 }]] });
  await locksOf(liar).using("x", {}, (lease) => assert.ok(lease.remaining <= 29_000));
});

test("a release without answer is repeated", async (t) => {
  const server = await serve(t, { acquire: [grant()], release: [drop, problem(503, "unknown"), problem(410, "lost")] });
  await (await locksOf(server).lock("x")).release(); // the first one has released it
  assert.equal(server.calls("release").length, 3);
});

test("a release that is never confirmed", async (t) => {
  const locks = locksOf(await serve(t, { acquire: [grant()], release: [drop] }));
  assert.equal(await locks.using("x", {}, () => "done"), "done");
  await assert.rejects((await locks.lock("x")).release(), Unavailable);
});

test("lost before the release", async (t) => {
  const locks = locksOf(await serve(t, { acquire: [grant()], release: [problem(410, "lost")] }));
  await assert.rejects(locks.using("x", {}, () => {}), Lost);
  await assert.rejects(locks.using("x", {}, () => Promise.reject(new Error("of the work"))), /of the work/);
});
