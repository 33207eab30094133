// The client on real servers. proof/clients has more of this, with holders in other languages.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Held, Locks, Lost } from "../distlock.mjs";
import { eventually } from "./fake.mjs";
import { blackHole, folderOf, program, start } from "./server.mjs";

test("kinds of locks, and who holds them", async (t) => {
  const { url } = await start(t, folderOf(t));
  const a = new Locks(url, { meta: { job: "a" } });
  const b = new Locks(url);
  await a.using("x", async (lease) => {
    assert.equal(await b.tryLock("x"), null);
    const error = await b.lock("x", { wait: 20 }).catch((e) => e);
    assert.ok(error instanceof Held && error.holders[0].meta.job === "a");
    assert.equal((await b.holder("x")).fence, lease.fence);
    assert.ok(await b.locked("x"));
    const next = b.lock("x");
    await lease.release();
    assert.ok((await next).fence > lease.fence);
    await (await next).release();
  });
  assert.ok(!(await a.locked("x")));
  const readers = await Promise.all([a.lock("rw", { mode: "read" }), b.lock("rw", { mode: "read" })]);
  assert.equal(await a.tryLock("rw", { mode: "write" }), null);
  await Promise.all(readers.map((r) => r.release()));
  await (await a.tryLock("rw", { mode: "write" })).release();
  const permits = [await a.tryLock("s", { limit: 2 }), await b.tryLock("s", { limit: 2 })];
  assert.equal(await a.tryLock("s", { limit: 2 }), null);
  await Promise.all(permits.map((p) => p.release()));
});

test("nobody blocks another for ever who locks several", async (t) => {
  const { url } = await start(t, folderOf(t));
  const clients = [new Locks(url), new Locks(url)];
  let inside = 0;
  await Promise.all(clients.map(async (locks, i) => {
    for (let round = 0; round < 5; round++) {
      await locks.using(i ? ["a", "b", "c"] : ["c", "b", "a"], async () => {
        assert.equal(++inside, 1);
        await sleep(1);
        inside--;
      });
    }
  }));
});

test("an aborted wait leaves nothing, whenever it is aborted", async (t) => {
  const { url } = await start(t, folderOf(t));
  const locks = new Locks(url);
  for (let i = 0; i < 40; i++) {
    const held = i % 2 ? await locks.lock("x") : undefined;
    const abort = new AbortController();
    const wait = locks.lock("x", { signal: abort.signal }).then((lease) => lease.release(), (e) => assert.equal(e, abort.signal.reason));
    await sleep(Math.random() * 6);
    const released = i % 4 === 1 ? held.release() : undefined; // it gets the lock while it is aborted
    abort.abort(new Error("enough"));
    await wait;
    await (released ?? held?.release());
    const after = await locks.tryLock("x");
    assert.notEqual(after, null, `round ${i}`);
    await after.release();
  }
  const { waiters } = await (await fetch(`${url}/v1/locks/x`)).json();
  assert.deepEqual(waiters, []);
});

test("a first host that is off costs a moment once", async (t) => {
  const folder = folderOf(t);
  const good = await start(t, folder);
  const stopped = await start(t, folder);
  stopped.kill("SIGSTOP");
  for (const off of [await blackHole(t), "http://127.0.0.1:1", stopped.url]) {
    const alone = new Locks(off).tryLock("x"); // has 5 s, twice
    alone.catch(() => {});
    const locks = new Locks([off, good.url]);
    const first = performance.now();
    await Promise.race([locks.using("x", () => {}), alone.then(() => assert.fail("locked"), () => off !== "http://127.0.0.1:1" && assert.fail("too late"))]);
    const second = performance.now();
    await locks.using("x", () => {});
    t.diagnostic(`${off}: ${Math.round(second - first)} ms, then ${Math.round(performance.now() - second)} ms`);
  }
});

test("a server that drains sends its waiters on", async (t) => {
  const folder = folderOf(t);
  const [draining, good] = [await start(t, folder), await start(t, folder)];
  const holder = await new Locks(good.url).lock("x");
  const locks = new Locks([draining.url, good.url]);
  const wait = locks.lock("x");
  await eventually(async () => (await (await fetch(`${good.url}/v1/locks/x`)).json()).waiters.length > 0);
  draining.kill("SIGTERM");
  await once(draining.child, "exit");
  await holder.release();
  await (await wait).release();
});

test("the lock of a program that was killed, or that ended, is free after its TTL or its minimum hold", async (t) => {
  const { url } = await start(t, folderOf(t));
  const locks = new Locks(url);
  const take = `const locks = new Locks(process.argv[1]); globalThis.lease = await locks.lock("x", { ttl: 1000 }); console.log(lease.fence);`;
  const killed = program(t, `${take} setInterval(() => {}, 1000);`, url);
  await eventually(() => killed.lines.length > 0);
  killed.kill("SIGKILL");
  await (await locks.lock("x")).release();
  const ended = program(t, take, url);
  await once(ended, "close"); // once all that it printed was read
  assert.equal(ended.lines.length, 1);
  await (await locks.lock("x")).release();
  const start_ = performance.now();
  const minimum = program(t, `const locks = new Locks(process.argv[1]); await locks.using("x", { ttl: 500, minHold: 3000 }, () => {});`, url);
  await once(minimum, "exit");
  await (await locks.lock("x")).release();
  assert.ok(performance.now() - start_ >= 3_000);
});

test("a program that was stopped has lost its lock, before anything else runs", async (t) => {
  const { url } = await start(t, folderOf(t));
  const child = program(t, `
    const lease = await new Locks(process.argv[1]).lock("x", { ttl: 1000 });
    const { signal } = lease;
    setInterval(() => signal.aborted && console.log("late"), 1);
    process.stdin.on("data", () => console.log(signal.aborted, lease.remaining));
    console.log("held");`, url);
  await eventually(() => child.lines.length > 0);
  child.kill("SIGSTOP");
  const next = await new Locks(url).lock("x");
  child.stdin.write("?\n");
  child.kill("SIGCONT");
  await eventually(() => child.lines.some((l) => l.startsWith("true")));
  assert.ok(!child.lines.some((l) => l.startsWith("false")));
  await next.release();
});
