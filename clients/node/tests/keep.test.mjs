// One timer for all leases: joined renewals, minimum holds, extensions, leases that nobody has any more.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import v8 from "node:v8";
import vm from "node:vm";

import holding from "../lib/hold.js";
import keeping from "../lib/keeper.js";
import { Invalid, Locks, Lost, Unavailable } from "../distlock.mjs";
import { HELD, RENEWED, aborted, drop, eventually, grant, hang, locksOf, problem, serve, warning } from "./fake.mjs";

const { Hold } = holding;
const { Keeper } = keeping;

v8.setFlagsFromString("--expose-gc");
const gc = vm.runInNewContext("gc");

const outcome = (...outcomes) => [200, ...outcomes.map((outcome, index) => ({ index, outcome }))];

test("leases whose renewals are due soon are renewed together, with their fences", async () => {
  const sent = [];
  const servers = { call: async (_, { holds }, { line }) => (sent.push(holds), holds.forEach((__, index) => line({ index, outcome: "ok" })), ["ok", {}]) };
  const keeper = new Keeper(servers);
  const client = { servers, keeper, emit() {} };
  const since = performance.now() + 100 - 10_000; // they are to be renewed in 100 ms
  const holdOf = (_, i) => new Hold(client, { name: String(i) }, 7n, { ttl: 30_000, renew: true, minHold: 0 }, since + i / 5, 30_000);
  const holds = Array.from({ length: 1_200 }, holdOf);
  await eventually(() => sent.flat().length === 1_200);
  assert.deepEqual(sent.map((s) => s.length), [500, 500, 200]); // a server takes 1000 at once
  assert.deepEqual(sent[0][5], { name: "5", fence: "7", ttl_ms: 30_000 });
  assert.ok(holds.every((h) => h.remaining > 20_000));
});

test("a hold without an outcome holds up no other", async (t) => {
  const renew = [({ holds }) => [200, ...holds.map((h, index) => ({ index, outcome: h.name === "bad" ? "unknown" : "ok" }))]];
  const server = await serve(t, { acquire: [grant({ ttl_ms: 20_100 })], renew });
  const locks = locksOf(server);
  const [good, bad] = await Promise.all([locks.lock("good"), locks.lock("bad")]);
  const tries = () => server.calls("renew").filter((b) => b.holds.some((h) => h.name === "bad"));
  await eventually(() => tries().length > 2);
  assert.deepEqual(tries().at(-1).holds.map((h) => h.name), ["bad"]); // it is tried often, and without the other
  assert.ok(good.remaining > 21_000 && bad.remaining < 20_000);
  await Promise.all([good.release(), bad.release()]);
});

test("lines count as they come", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 20_000 })], renew: [hang] });
  const locks = locksOf(server);
  const first = await locks.lock("first", { ttl: 30_000 }); // is renewed at once
  await eventually(() => server.calls("renew").length > 0);
  const before = first.remaining;
  const { socket, headers } = server.requests.find((r) => r.call === "renew");
  const line = '{"index":0,"outcome":"ok"}\n';
  socket.write(`HTTP/1.1 200 OK\r\nDistlock-Backend: fake\r\nDistlock-Request: ${headers["distlock-request"]}\r\nTransfer-Encoding: chunked\r\n\r\n`);
  socket.write(`${line.length.toString(16)}\r\n${line}\r\n`); // and no end
  await eventually(() => first.signal.aborted || first.remaining > before + 5_000);
  await first.release();
});

test("a fixed lease is not renewed", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 300 })], renew: [RENEWED] });
  const lease = await locksOf(server).lock("x", { ttl: 300, renew: false });
  assert.equal(server.calls("acquire")[0].fixed, true);
  await aborted(lease.signal);
  assert.equal(server.calls("renew").length, 0);
});

test("a lease is extended", async (t) => {
  const server = await serve(t, { acquire: [grant()], renew: [drop, RENEWED] });
  for (const renew of [true, false]) {
    const lease = await locksOf(server).lock("x", { renew });
    await lease.extend(60_000);
    assert.ok(lease.remaining > 50_000);
    await lease.extend(1_000); // shortens nothing
    assert.ok(lease.remaining > 50_000);
    await assert.rejects(lease.extend(0), TypeError);
    await lease.release();
    await assert.rejects(lease.extend(1_000), Lost);
  }
  assert.deepEqual(server.calls("renew").map((b) => b.holds[0].ttl_ms), [60_000, 60_000, 1_000, 60_000, 1_000]);
});

test("a lease that can't be extended", async (t) => {
  for (const [answer, error] of [[outcome("lost"), Lost], [outcome("invalid"), Invalid], [drop, Unavailable]]) {
    const server = await serve(t, { acquire: [grant()], renew: [answer] });
    const lease = await locksOf(server).lock("x");
    await assert.rejects(lease.extend(60_000), error);
    assert.equal(lease.signal.aborted, error === Lost);
    assert.ok(lease.remaining <= 29_000); // the old end holds
  }
});

test("a minimum hold", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  const start = performance.now();
  const lease = await locksOf(server).lock("x", { minHold: 1_000 });
  await lease.release();
  const early = server.calls("release").length;
  assert.ok(early === 0 || performance.now() - start >= 1_000 - 1); // a slow machine may come late
  assert.equal(lease.remaining, 0);
  await eventually(() => server.calls("release").length > 0);
  assert.ok(performance.now() - start >= 1_000 - 1);
});

test("a maximum hold ends a lease that is renewed", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 20_100 })], renew: [RENEWED] });
  const start = performance.now();
  const lease = await locksOf(server).lock("x", { maxHold: 500 });
  await aborted(lease.signal);
  assert.ok(performance.now() - start >= 500 - 1);
  assert.match(lease.signal.reason.message, /its maxHold is over/);
  await assert.rejects(lease.release(), Lost);
});

test("a minimum hold outlives the process, and is renewed where the server granted less", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 20_100 })], renew: [RENEWED] });
  const lease = await locksOf(server).lock("x", { minHold: 60_000 });
  assert.equal(server.calls("acquire")[0].ttl_ms, 60_000);
  await lease.release();
  await eventually(() => server.calls("renew").length > 0);
  assert.equal(server.calls("release").length, 0);
});

test("a lease that is forgotten ends", async (t) => {
  const events = [];
  const server = await serve(t, { acquire: [grant({ ttl_ms: 20_100 })], renew: [RENEWED] });
  const locks = new Locks(server.url, { onEvent: (e) => events.push(e.kind) });
  const warned = warning(/"x" was never released/);
  let told;
  const signal = await (async () => (await locks.lock("x", { onLost: (e) => (told = e) })).signal)();
  while (server.calls("release").length === 0) {
    gc();
    await sleep(5);
  }
  await warned;
  assert.ok(signal.aborted && told instanceof Lost && signal.reason === told);
  assert.deepEqual(events, ["taken", "forgotten"]);
  const renewals = server.calls("renew").length;
  await sleep(300); // a lease would be renewed meanwhile
  assert.equal(server.calls("renew").length, renewals);
});

test("a lease in use is not forgotten", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  await locksOf(server).using("x", async () => {
    for (let i = 0; i < 20; i++) {
      gc();
      await sleep(1);
    }
  });
  assert.equal(server.calls("release").length, 1);
});

test("a lease that is lost without proof is released a margin after its TTL", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 1_000 })], renew: [drop] });
  const start = performance.now();
  const lease = await locksOf(server).lock("x", { ttl: 1_000 });
  await aborted(lease.signal);
  const early = server.calls("release").length;
  assert.ok(early === 0 || performance.now() - start >= 1_100 - 1); // a slow machine may come late
  await eventually(() => server.calls("release").length > 0);
  assert.ok(performance.now() - start >= 1_100 - 1);
  await assert.rejects(lease.release(), Lost);
  assert.equal(server.calls("release").length, 1);
});

test("the loss is seen before any timer runs", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 300 })], renew: [RENEWED] });
  const lease = await locksOf(server).lock("x", { ttl: 300 });
  const { signal } = lease;
  let fired = false;
  signal.addEventListener("abort", () => (fired = true));
  const end = performance.now() + 400;
  while (performance.now() < end);
  await null;
  assert.ok(signal.aborted && fired);
  assert.throws(() => signal.throwIfAborted(), Lost);
  await assert.rejects(lease.release(), Lost);
});

test("a lease does not keep its process alive", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 900_000 }), HELD], renew: [hang] });
  const script = `
    import { Locks } from ${JSON.stringify(new URL("../distlock.mjs", import.meta.url))};
    const locks = new Locks(${JSON.stringify(server.url)});
    globalThis.lease = await locks.lock("x", { ttl: 1_000_000 });
    globalThis.busy = await locks.lock("x", { wait: 0 }).catch((e) => console.log(e.name));`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", script]);
  let text = "";
  child.stdout.on("data", (part) => (text += part));
  const [code] = await new Promise((resolve) => child.on("close", (...result) => resolve(result)));
  assert.deepEqual([code, text], [0, "Held\n"]); // a wait does, also while nothing else runs
  assert.equal(server.calls("release").length, 0);
});
