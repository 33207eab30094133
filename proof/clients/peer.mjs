// Takes locks as the test says, with the client for Node. See peer_test.go.

import { appendFile, readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import { DistlockError, Locks } from "../../clients/node/distlock.mjs";

const locks = new Locks(process.argv.slice(2), { token: process.env.DISTLOCK_TOKEN });
const say = (...words) => process.stdout.write(`${words.join(" ")}\n`);
let lease;

// watch says when the lease was trusted last, once it is lost.
async function watch(lease) {
  let trusted = 0n;
  lease.signal.addEventListener("abort", () => say("lost", trusted));
  for (;;) {
    const now = process.hrtime.bigint();
    if (lease.remaining === 0) return;
    trusted = now;
    await sleep(10);
  }
}

const calls = {
  async lock(name, ttl, wait, mode, limit) {
    lease = await locks.lock(name, {
      ttl: Number(ttl), wait: Number(wait) < 0 ? Infinity : Number(wait), mode, limit: Number(limit) || undefined,
    });
    void watch(lease);
    say("held", lease.fence);
  },

  async release() {
    await lease.release();
    say("released");
  },

  async count(name, file, rounds) {
    for (let i = 0; i < rounds; i++) {
      await locks.using(name, {}, async (lease) => {
        await appendFile(`${file}.history`, `begin ${lease.fence}\n`);
        const [n, fence] = (await readFile(file, "utf8")).split(" ");
        if (lease.fence <= BigInt(fence)) throw new Error("an older fence");
        await writeFile(file, `${Number(n) + 1} ${lease.fence}`);
        await appendFile(`${file}.history`, `end ${lease.fence}\n`);
      });
    }
    say("counted");
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [call, ...words] = line.split(" ");
  try {
    await calls[call](...words);
  } catch (e) {
    if (!(e instanceof DistlockError)) throw e;
    say("error", e.name, e.message);
  }
}
process.exit();
