"use strict";

/** What a client holds at the server, from the grant to the end. Nothing here leads to the user's Lease, so one that is forgotten is noticed. */

const { Lost, Unavailable, FINAL, quote } = require("./errors.js");
const { renew } = require("./keeper.js");
const { pause, timeout } = require("./servers.js");

/** Returns how long before the end of the TTL a lease is lost: for clocks of different speed, and time to stop. */
const margin = (ttl) => Math.min(ttl / 10, 1000);

/** Notices leases that nobody has any more. */
const leases = new FinalizationRegistry((hold) => hold.forget());

const isAborted = Object.getOwnPropertyDescriptor(AbortSignal.prototype, "aborted").get;

let warned = false;

/** Warns of the first lease that is forgotten; events tell of all. */
function warn(text) {
  if (!warned) process.emitWarning(text, "DistlockWarning");
  warned = true;
}

class Hold {
  busy = false; // a renewal is under way
  #client; // its servers, keeper and emit
  #key;
  #state = "held"; // released or lost at the end
  #deadline; // of performance.now(); only a renewal in time moves it
  #end = 0; // when the server ends it, at the earliest, if nobody renews it
  #since; // when the server granted it, or a little earlier
  #keptUntil; // for the minimum hold
  #mostUntil; // for the maximum hold
  #renews;
  #renewAt = Infinity;
  #releaseAt = Infinity; // when the keeper releases one that has ended
  #gone = false; // the server said that it is lost, or a release was sent
  #loss; // the AbortController, once somebody wants its signal
  #reason; // the Lost
  #onLost;
  #late; // servers at which an attempt may yet arrive

  /** granted is when the server granted it for life ms, or a little earlier. */
  constructor(client, key, fence, { ttl, renew: renews, minHold, maxHold = Infinity, onLost }, granted, life, late) {
    this.#client = client;
    this.#key = key;
    this.name = key.name;
    this.fence = fence;
    this.ttl = ttl;
    this.#since = granted;
    this.#keptUntil = granted + minHold;
    this.#mostUntil = granted + maxHold;
    this.#renews = renews;
    this.#onLost = onLost;
    this.#late = late;
    this.#trust(granted, life);
    client.keeper.schedule(this);
  }

  /** Is called with the only lease on it. */
  belongsTo(lease) { leases.register(lease, this, this); }

  #trust(start, life) {
    this.#end = Math.max(this.#end, start + life);
    this.#deadline = Math.min(this.#end - margin(this.ttl), this.#mostUntil);
    if (this.#renews) this.#renewAt = this.#end - (this.ttl * 2) / 3;
  }

  get held() { return this.#state === "held"; }

  get lost() { return this.#state === "lost"; }

  /** For how many ms the lease is trusted. */
  get remaining() { return this.held ? Math.max(0, this.#deadline - performance.now()) : 0; }

  get signal() {
    if (this.#loss === undefined) {
      const { signal } = (this.#loss = new AbortController());
      // Code that runs after a blocked event loop, and before its timers, sees the loss too.
      Object.defineProperty(signal, "aborted", { get: () => (this.look(), isAborted.call(signal)) });
      if (this.lost) this.#loss.abort(this.#reason);
    }
    this.look();
    return this.#loss.signal;
  }

  /** Ends the lease if its time is over, and releases one that was to be kept until now. */
  look() {
    const now = performance.now();
    if (this.held && now >= this.#deadline) this.#lose(now < this.#mostUntil ? "no renewal had an answer in time" : "its maxHold is over");
    if (now >= this.#releaseAt) void this.#giveBack(Math.max(now + timeout(this.ttl), this.#end + margin(this.ttl)), { background: true });
  }

  /** When the keeper is to look at it. */
  next() { return Math.min(this.#renewalAt, this.held ? this.#deadline : this.#releaseAt); }

  wantsRenewal(by) { return this.#renewalAt <= by; }

  /** One that was released before its minimum hold is over may need renewals yet. */
  get #renewalAt() {
    const waits = this.#state === "released" && this.#releaseAt < Infinity && this.#end < this.#releaseAt;
    return !this.busy && (this.held || waits) ? this.#renewAt : Infinity;
  }

  /** Returns what a renewal says of it. */
  renewal(ttl = this.ttl) { return { ...this.#key, fence: String(this.fence), ttl_ms: Math.ceil(ttl) }; }

  /** Takes note of what became of the keeper's renewal for life ms that was sent at start. */
  renewed(start, life, outcome) {
    this.busy = false;
    this.#learn(start, life, outcome);
    if (outcome !== "ok") this.#renewAt = performance.now() + this.ttl / 30;
    this.#client.keeper.schedule(this);
  }

  #learn(start, life, outcome) {
    this.look(); // an answer that comes too late changes nothing
    if (this.lost) return;
    if (outcome === "ok") this.#trust(start, life);
    if (outcome !== "lost") return;
    this.#gone = true;
    this.#releaseAt = Infinity;
    if (this.held) this.#lose("the server has it no more");
  }

  /** Makes the lease last for at least ttl from now, and be renewed by as much if it is renewed. */
  async extend(ttl) {
    this.check();
    const until = this.#deadline;
    let why;
    for (let n = 0; n < 2 * this.#client.servers.count && performance.now() < until; n++) {
      if (n > 0) await pause(n, until, {});
      const start = performance.now();
      let outcome = "unknown";
      const heard = (_, ...result) => ([outcome, why] = result);
      const detail = await renew(this.#client.servers, [this.renewal(ttl)], { most: timeout(this.ttl), heard });
      if (outcome === "ok" && this.#renews) this.ttl = Math.max(this.ttl, ttl);
      this.#learn(start, ttl, outcome);
      this.check();
      if (outcome in FINAL) throw new FINAL[outcome](why);
      if (outcome === "ok") return this.#client.keeper.schedule(this);
      why ??= detail;
    }
    throw new Unavailable(`${quote(this.name)} was not extended: ${why}`);
  }

  /** Throws Lost if the lease has ended. It compares the clock itself, in case no timer could run. */
  check() {
    this.look();
    if (this.lost) throw this.#reason;
    if (!this.held) throw new Lost(`${quote(this.name)} was released`);
  }

  /** Releases it. What was not used needs no minimum hold. */
  async release({ unused = false } = {}) {
    this.look();
    if (this.lost) { // one that is lost by the clock may live on at the server
      await this.#giveBack(0, {});
      throw this.#reason;
    }
    if (!this.held) return;
    const now = performance.now();
    this.#finish("released");
    if (now < this.#keptUntil && !unused) {
      this.#releaseLater(this.#keptUntil);
      return this.#tell("released", now);
    }
    const [kind, answer] = await this.#giveBack(this.#end + margin(this.ttl), {});
    if (kind === "lost") {
      this.#state = "lost";
      this.#tellLoss("it was so before its release", now);
      throw this.#reason;
    }
    this.#tell("released", now);
    if (kind !== "ok") throw new Unavailable(`the release of ${quote(this.name)} was not confirmed: ${answer.detail}`);
  }

  /** Ends a lease that nobody has any more. */
  forget() {
    if (!this.held) return;
    this.#finish("lost");
    this.#tellLoss("its lease was garbage, and never released", performance.now(), "forgotten");
    warn(`the lock ${quote(this.name)} was never released, and its lease is garbage: keep each lease, and release it`);
    this.#releaseLater(this.#keptUntil);
  }

  #lose(why) {
    this.#finish("lost");
    // Renewals without an answer may have made it last. Whoever works on has a margin to stop.
    if (!this.#gone) this.#releaseLater(this.#end + margin(this.ttl));
    this.#tellLoss(why, performance.now());
  }

  #finish(state) {
    this.#state = state;
    leases.unregister(this);
    this.#client.keeper.schedule(this);
  }

  #tell(event, now) { this.#client.emit(event, this.name, now - this.#since); }

  #tellLoss(why, now, event = "lost") {
    this.#reason = new Lost(`${quote(this.name)} is lost: ${why}`);
    this.#loss?.abort(this.#reason);
    this.#tell(event, now);
    const onLost = this.#onLost;
    if (onLost) void (async () => onLost(this.#reason))().catch(() => {});
  }

  #releaseLater(at) {
    this.#releaseAt = at;
    this.#client.keeper.schedule(this);
  }

  /** Releases at the server: once, and until an instant until there is an answer. */
  async #giveBack(until, { background }) {
    this.#releaseAt = Infinity;
    this.#client.keeper.schedule(this);
    if (this.#gone) return ["lost", {}];
    this.#gone = true;
    return this.#client.servers.release(this.#key, until, { most: timeout(this.ttl), background, late: this.#late });
  }
}

module.exports = { Hold, margin };
