"use strict";

/** Taking a lock: attempts by one owner, until there is an answer that ends them. */

const { randomUUID } = require("node:crypto");
const { FINAL, Held, Unavailable } = require("./errors.js");
const { Hold, margin } = require("./hold.js");
const { holdersOf } = require("./inspect.js");
const { pause, timeout } = require("./servers.js");

const POLL = 20_000; // ms for which one call waits: less than a server's limit, and than proxies allow
const PATIENCE = 4900; // ms without an answer after which a wait says so, less what timers may be early
const CROWDED = 6; // failures after which a pause is as long as where too many wait by requests

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
  #unsure = false; // a call of this owner had no answer
  #late; // the servers at which such a call may yet arrive

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
    const { servers } = this.#client;
    for (let tries = 1, failures = 0, since; ; tries++) {
      signal?.throwIfAborted();
      const start = performance.now();
      const [kind, answer, hold] = await this.#send();
      if (hold) return hold;
      await this.#respend(answer);
      signal?.throwIfAborted();
      const now = performance.now();
      const over = now >= this.#end;
      const withdrawn = kind === "denied" && servers.worked; // it may be given back
      if (kind in FINAL && (over || !withdrawn)) throw new FINAL[kind](answer.detail);
      failures = kind === "held" ? 0 : failures + 1;
      since = failures > 1 ? since : start; // the first failure
      if (failures > 0 && now - since >= PATIENCE) servers.warn(answer.detail);
      if (over && kind === "held") throw new Held(this.#key.name, holdersOf(answer.holders));
      if (over && tries >= 2 * servers.count) throw new Unavailable(answer.detail);
      if (!withdrawn && failures > 0 && failures < servers.count) continue; // the next server may be better
      await pause(answer.crowded ? CROWDED : failures, this.#end, { signal });
    }
  }

  async #send() {
    const { ttl, signal } = this.#options;
    const start = performance.now();
    const poll = Math.floor(Math.max(0, Math.min(POLL, this.#end - start)));
    const { name, owner, mode } = this.#key;
    const { limit, ttl_ms, min_hold_ms, fixed, meta } = this.#request;
    const body = { name, owner, mode, limit, ttl_ms, min_hold_ms, fixed, meta, wait_ms: poll }; // written out, since that takes less time
    const [kind, answer] = await this.#client.servers.call("acquire", body, { most: poll + timeout(ttl), signal });
    const mayHave = kind === "ok" || kind === "unknown" || (poll > 0 && !answer.crowded && !(kind in FINAL));
    this.#owed ||= mayHave && answer.sent !== false;
    this.waited ||= (kind === "held" && this.#end > start) || (kind === "ok" && answer.waited_ms > 0);
    this.#unsure ||= kind === "unknown";
    if (answer.at) (this.#late ??= new Set()).add(answer.at);
    if (kind !== "ok") return [kind, answer];
    const now = performance.now();
    const granted = start + Math.min(answer.waited_ms, now - start); // no server has waited for longer than its answer took
    if (now < granted + answer.ttl_ms - margin(ttl) && /^\d+$/.test(answer.fence)) {
      return [kind, answer, new Hold(this.#client, this.#key, BigInt(answer.fence), this.#options, granted, answer.ttl_ms, this.#late)];
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
    this.#late = undefined;
  }

  /** Releases what the server may have. */
  async undo() {
    if (!this.#owed) return;
    const until = performance.now() + this.#request.ttl_ms;
    await this.#client.servers.release(this.#key, until, { most: timeout(this.#options.ttl), late: this.#late });
  }
}

module.exports = { acquire };
