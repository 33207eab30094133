"use strict";

/** Taking a lock: attempts by one owner, until there is an answer that ends them. */

const { randomUUID } = require("node:crypto");
const { FINAL, Held, Unavailable } = require("./errors.js");
const { Hold, margin } = require("./hold.js");
const { holdersOf } = require("./inspect.js");
const { pause, timeout } = require("./servers.js");

const POLL = 20_000; // ms for which one request waits: less than a server's limit, and than proxies allow
const TURN = 2_000; // the same, where others wait for their turn to wait

/** Takes a lock and returns its Hold. A wait that fails or is aborted leaves nothing at the server. */
async function acquire(client, name, options) {
  const began = performance.now();
  const attempt = new Attempt(client, name, options, began + options.wait);
  const tell = (event) => {
    const took = performance.now() - began;
    if (attempt.waited) client.emit("waited", name, took);
    client.emit(event, name, took);
  };
  try {
    const hold = await attempt.run();
    tell("taken");
    return hold;
  } catch (e) {
    tell("failed");
    await attempt.undo();
    throw e;
  }
}

class Attempt {
  waited = false; // others had the lock
  #client;
  #options;
  #end; // of the wait
  #key;
  #request;
  #owed = false; // a server may have a hold of this owner, or a place in the queue
  #unsure = false; // a request of this owner had no answer

  constructor(client, name, options, end) {
    const { ttl, minHold, mode, limit, renew, meta } = options;
    this.#client = client;
    this.#options = options;
    this.#end = end;
    this.#key = { name, owner: randomUUID(), mode };
    // The server keeps it for the minimum hold, whatever becomes of this process.
    const life = Math.ceil(Math.max(ttl, minHold));
    const min_hold_ms = minHold ? Math.ceil(minHold) : undefined; // some stores can't keep it so
    this.#request = { limit, ttl_ms: life, min_hold_ms, fixed: renew ? undefined : true, meta: { ...client.meta, ...meta } };
  }

  async run() {
    const { signal } = this.#options;
    const { count } = this.#client.servers;
    for (let tries = 1, failures = 0, crowded = false; ; tries++) {
      signal?.throwIfAborted();
      const [kind, answer, hold] = await this.#try(crowded);
      if (hold) return hold;
      crowded = answer.crowded === true;
      await this.#respend(answer);
      signal?.throwIfAborted();
      if (kind in FINAL) throw new FINAL[kind](answer.detail);
      failures = kind === "held" ? 0 : failures + 1;
      const over = performance.now() >= this.#end;
      if (over && kind === "held") throw new Held(this.#key.name, holdersOf(answer.holders));
      if (over && tries >= 2 * count) throw new Unavailable(answer.detail);
      if (crowded || (failures > 0 && failures < count)) continue; // the next server may be better
      await pause(failures, this.#end, { signal });
    }
  }

  /** Makes one request. One that waits has a slot for as long. Without a free slot there is one that does not wait, and then a wait for the slot. */
  async #try(crowded) {
    const { signal } = this.#options;
    const { waits, quick } = this.#client.servers;
    const left = Math.max(0, this.#end - performance.now());
    if (left > 0 && (crowded ? await waits.take(left, signal) : waits.tryTake())) {
      try {
        return await this.#send(Math.min(waits.crowded ? TURN : POLL, this.#end - performance.now()));
      } finally {
        waits.give();
      }
    }
    if (!(await quick.take(Infinity, signal))) return ["unsent", { detail: "given up" }];
    const [kind, answer, hold] = await this.#send(0).finally(() => quick.give());
    return [kind, { ...answer, crowded: left > 0 && kind === "held" }, hold];
  }

  async #send(wait) {
    const { ttl, signal } = this.#options;
    const poll = Math.floor(Math.max(0, wait));
    const start = performance.now();
    const body = { ...this.#key, ...this.#request, wait_ms: poll };
    const [kind, answer] = await this.#client.servers.call("acquire", body, { most: poll + timeout(ttl), signal });
    const mayHave = kind === "ok" || kind === "unknown" || (poll > 0 && !(kind in FINAL));
    this.#owed ||= mayHave && answer.sent !== false;
    this.waited ||= (kind === "held" && this.#end > start) || (kind === "ok" && answer.waited_ms > 0);
    this.#unsure ||= kind === "unknown";
    if (kind !== "ok") return [kind, answer];
    const now = performance.now();
    const granted = start + Math.min(answer.waited_ms, now - start); // no server has waited for longer than its answer took
    if (now < granted + answer.ttl_ms - margin(ttl) && /^\d+$/.test(answer.fence)) {
      return [kind, answer, new Hold(this.#client, this.#key, BigInt(answer.fence), this.#options, granted, answer.ttl_ms)];
    }
    this.#unsure = true;
    return ["unknown", { detail: "the answer came too late" }];
  }

  /** Takes a fresh owner if the server has released this one, perhaps late: it must make no other attempt. */
  async #respend({ spent }) {
    if (spent !== true) return;
    if (this.#unsure) await this.undo();
    this.#key = { ...this.#key, owner: randomUUID() };
    this.#owed = this.#unsure = false;
  }

  /** Releases what the server may have. */
  async undo() {
    if (!this.#owed) return;
    const most = timeout(this.#options.ttl);
    await this.#client.servers.release(this.#key, performance.now() + most, { most });
  }
}

module.exports = { acquire };
