// What takes minutes: npm run test-long. Servers and clients are killed and stopped all the time.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import v8 from "node:v8";
import vm from "node:vm";

import { Locks } from "../distlock.mjs";
import { eventually } from "./fake.mjs";
import { folderOf, program, start } from "./server.mjs";

v8.setFlagsFromString("--expose-gc");
const gc = vm.runInNewContext("gc");

/** Kills one of two servers of a folder every second, and starts it again at the same place. stop ends that, with both running. */
async function mortals(t) {
  const folder = folderOf(t);
  const servers = [await start(t, folder), await start(t, folder)];
  const urls = servers.map((s) => s.url);
  let ended = false;
  let kills = 0;
  const loop = (async () => {
    for (let i = 0; !ended; i = 1 - i) {
      await sleep(1_000);
      servers[i].kill();
      await once(servers[i].child, "exit");
      const { addr } = servers[i];
      for (servers[i] = null; !servers[i]; ) servers[i] = await start(t, folder, addr).catch(() => null); // its port may be a client's for a moment
      kills++;
    }
  })();
  const stop = async () => {
    ended = true;
    await loop;
    return kills;
  };
  return { urls, stop };
}

test("a thousand leases outlive servers that are killed every second", async (t) => {
  const servers = await mortals(t);
  const lost = [];
  const locks = new Locks(servers.urls);
  const leases = await Promise.all(Array.from({ length: 1000 }, (_, i) => locks.lock(`name ${i}`, { ttl: 20_000, onLost: (e) => lost.push(e.message) })));
  const end = performance.now() + 45_000; // more than two TTLs
  while (performance.now() < end) {
    await sleep(500);
    for (const lease of leases) lease.check();
  }
  t.diagnostic(`${await servers.stop()} kills, ${process.memoryUsage().rss >> 20} MiB`);
  await Promise.all(leases.map((l) => l.release()));
  assert.deepEqual(lost, []);
  for (let i = 0; i < 1000; i += 100) assert.equal(await locks.locked(`name ${i}`), false);
});

const worker = `
  import { setTimeout as sleep } from "node:timers/promises";
  const locks = new Locks(process.argv.slice(1));
  for (;;) {
    await locks.using("x", { ttl: 1500 }, async (lease) => {
      let until = process.hrtime.bigint();
      console.log(["enter", String(lease.fence), String(until)].join(" "));
      for (let i = 0; i < 5; i++) {
        const now = process.hrtime.bigint();
        if (lease.remaining === 0) break; // it was trusted at now if it is trusted after
        until = now;
        await sleep(1);
      }
      console.log(["leave", String(lease.fence), String(until)].join(" "));
    }).catch((e) => { if (e.name !== "Lost") throw e; });
  }`;

test("one holder at a time, while servers are killed and clients killed and stopped", async (t) => {
  const servers = await mortals(t);
  const all = [];
  const newWorker = () => {
    const child = program(t, worker, ...servers.urls);
    all.push(child);
    return child;
  };
  const workers = [newWorker(), newWorker(), newWorker()];
  for (let i = 0; i < 24; i++) {
    await sleep(1_000);
    const w = i % workers.length;
    if (i % 4 === 0) {
      workers[w].kill("SIGKILL");
      workers[w] = newWorker();
    } else {
      workers[w].kill("SIGSTOP");
      await sleep(Math.random() * 2_500);
      workers[w].kill("SIGCONT");
    }
  }
  const kills = await servers.stop();
  const turns = new Map(); // fences with the time from the grant to the last instant of trust
  const read = () => {
    turns.clear();
    for (const line of all.flatMap((w) => w.lines)) {
      const [word, fence, at] = line.split(" ");
      if (word === "enter") assert.ok(!turns.has(fence), `fence ${fence} twice`);
      turns.set(fence, { from: word === "enter" ? BigInt(at) : turns.get(fence).from, until: BigInt(at) });
    }
    return turns.size;
  };
  const before = read();
  await eventually(async () => (await sleep(50), read() > before + 20)); // all goes on
  for (const w of workers) w.kill("SIGKILL");
  const sorted = [...turns].sort(([a], [b]) => (BigInt(a) < BigInt(b) ? -1 : 1));
  for (let i = 1; i < sorted.length; i++) {
    const [[, last], [fence, turn]] = [sorted[i - 1], sorted[i]];
    assert.ok(turn.from > last.until, `fence ${fence} began ${last.until - turn.from} ns before the end of the last`);
  }
  t.diagnostic(`${sorted.length} turns, ${kills} kills of servers`);
});

test("a client that is used for long does not grow", async (t) => {
  const { url } = await start(t, folderOf(t));
  const locks = new Locks(url);
  const round = async () => {
    for (let i = 0; i < 1_000; i++) await (await locks.lock("x", { ttl: 3_600_000 })).release();
    gc();
    return process.memoryUsage().heapUsed;
  };
  await round();
  const before = await round();
  for (let i = 0; i < 3; i++) await round();
  assert.ok((await round()) < before + (2 << 20));
});
