// Makes calls as the suite says, with the client for Node. See program_test.go.

import { appendFile, readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import { Locks } from "../../../clients/node/distlock.mjs";

const locks = new Map(), leases = new Map(), pending = new Map(), urls = new Map(); // by the number of the call that made them
const say = (...words) => process.stdout.write(`${words.join(" ").replaceAll("\n", " ")}\n`);
const probe = (a) => new Locks(urls.get(a.client)); // another client of the same servers

function terms(a, signal) {
  const o = { signal };
  for (const [word, option] of Object.entries({ ttl: "ttl", wait: "wait", min_hold: "minHold", max_hold: "maxHold", limit: "limit" })) {
    if (word in a) o[option] = Number(a[word]);
  }
  if ("mode" in a) o.mode = a.mode;
  if ("renew" in a) o.renew = a.renew === "true";
  return o;
}

// watch says when the lease was trusted last, once it is lost.
async function watch(call, lease) {
  let trusted = 0n;
  lease.signal.addEventListener("abort", () => say(call, "lost", trusted));
  for (;;) {
    const now = process.hrtime.bigint();
    if (lease.remaining === 0) return;
    trusted = now;
    await sleep(10);
  }
}

const wrongTerms = {
  "ttl in another unit": { ttl: 30 },
  "ttl of nothing": { ttl: 0 },
  "mode of another library": { mode: "shared" },
  timeout: { timeout: 5000 },
  blocking: { blocking: false },
  leaseTime: { leaseTime: 30_000 },
  retryCount: { retryCount: 3 },
};

async function add(file, fence) {
  await appendFile(`${file}.history`, `begin ${fence}\n`);
  const [n, before] = (await readFile(file, "utf8")).split(" ");
  if (fence <= BigInt(before)) throw new Error("an older fence");
  await writeFile(file, `${Number(n) + 1} ${fence}`);
  await appendFile(`${file}.history`, `end ${fence}\n`);
}

const event = () => {
  const e = {};
  e.happens = new Promise((resolve) => (e.happen = resolve));
  return e;
};

const calls = {
  async open(call, a) {
    const list = a.urls.split(",");
    locks.set(call, new Locks(list, { token: a.token, tokenFile: a.token_file }));
    urls.set(call, list);
    say(call, "opened");
  },

  async lock(call, a) {
    const end = new AbortController();
    pending.set(call, end);
    try {
      const lease = await locks.get(a.client).lock(a.name, terms(a, end.signal));
      leases.set(call, lease);
      if ("watch" in a) void watch(call, lease);
      say(call, "held", lease.fence);
    } catch (e) {
      if (!end.signal.aborted) throw e;
      say(call, "cancelled");
    }
  },

  async check(call, a) {
    leases.get(a.lease).check();
    say(call, "held");
  },

  async extend(call, a) {
    await leases.get(a.lease).extend(Number(a.ttl));
    say(call, "held");
  },

  async release(call, a) {
    await leases.get(a.lease).release();
    say(call, "released");
  },

  async cancel(call, a) { pending.get(a.call).abort(); },

  async twice(call, a) {
    const lease = await locks.get(a.client).lock(a.name, { ttl: 60_000, wait: 30_000 });
    const other = probe(a), found = [];
    for (let i = 0; i < 2; i++) {
      let held = false;
      try {
        const taken = await other.tryLock(a.name); // what `await using` does, which this Node can't read
        held = taken === null;
        await taken?.release();
        await lease[Symbol.asyncDispose]();
        found.push(held ? "locked" : "unlocked");
      } catch {
        found.push(held ? "failed" : "told");
      }
    }
    say(call, ...found);
  },

  async shared(call, a) {
    const limit = Number(a.limit), other = probe(a);
    const entered = [event(), event()], over = [event(), event()];
    let inside = 0, most = 0, ran = 0, raised = 0, free = -1;
    const use = async (n) => {
      try {
        await locks.get(a.client).using(a.name, { ttl: 60_000, wait: 30_000, limit }, async () => {
          ran++;
          most = Math.max(most, ++inside);
          entered[n].happen();
          if (n === 0) {
            await Promise.race([entered[1].happens, sleep(500)]);
          } else {
            await over[0].happens;
            const permits = [];
            for (let i = 0; i < limit; i++) permits.push(await other.tryLock(a.name, { limit }));
            const got = permits.filter((p) => p !== null);
            free = got.length;
            for (const p of got) await p.release();
          }
          inside--;
        });
      } catch {
        raised++;
      }
      over[n].happen();
      entered[n].happen();
    };
    const first = use(0);
    await entered[0].happens;
    await Promise.all([first, use(1)]);
    say(call, most, ran, raised, free);
  },

  async turns(call, a) {
    const n = Number(a.n), total = Number(a.total), order = [], over = event();
    const take = async (i) => {
      while (order.length < total) {
        await locks.get(a.client).using(a.name, { ttl: 60_000 }, () => {
          if (order.push(i) >= total) over.happen();
        });
      }
    };
    const waiters = Array.from({ length: n }, (_, i) => take(i));
    say(call, "started");
    await over.happens;
    const counts = Array(n).fill(0);
    for (const i of order.slice(0, total)) counts[i]++;
    say(call, "turns", ...counts);
    await Promise.all(waiters);
  },

  async forget(call, a) {
    leases.delete(a.lease);
    say(call, "forgotten");
  },

  async collect(call) {
    globalThis.gc();
    await sleep(1);
    say(call, "collected");
  },

  async idiom(call, a) {
    const lease = await locks.get(a.client).lock(a.name);
    try {
      if (a.case === "JSON.stringify of a lease") {
        JSON.stringify(lease);
      } else if (a.case === "JSON.stringify of a holder") {
        JSON.stringify(await locks.get(a.client).holder(a.name));
      } else {
        throw new Error(`no idiom ${a.case}`);
      }
    } finally {
      await lease.release();
    }
    say(call, "right");
  },

  async wrong(call, a) {
    if (a.case === "URL") {
      new Locks(a.url);
    } else if (a.case === "no name") {
      await locks.get(a.client).lock("");
    } else {
      await locks.get(a.client).lock("wrong", wrongTerms[a.case]);
    }
    say(call, "accepted");
  },

  async count(call, a) {
    for (let i = 0; i < Number(a.rounds); i++) {
      await locks.get(a.client).using(a.name, {}, (lease) => add(a.file, lease.fence));
    }
    say(call, "counted");
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [call, word, rest = ""] = line.split(" ");
  if (word === "exit") break;
  calls[word](call, Object.fromEntries(new URLSearchParams(rest))).catch((e) => say(call, "error", e.name, e.message));
}
process.stdin.destroy();
