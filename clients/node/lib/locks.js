"use strict";

/** The client; see distlock.d.ts. */

const { AsyncLocalStorage } = require("node:async_hooks");
const { anyOf } = require("./abort.js");
const { acquire } = require("./acquire.js");
const { Held, Invalid, quote } = require("./errors.js");
const { inspect } = require("./inspect.js");
const { Keeper } = require("./keeper.js");
const { Lease, Leases, done } = require("./lease.js");
const { TRY, USING, clientOptions, electOptions, lockOptions, nameOf } = require("./options.js");
const { Servers, pause } = require("./servers.js");

const AWAY = 2000; // ms for which a candidate that gave up its term stays away: a free lock is kept so long for the next

/** What the running function is called under: the innermost using with one name, and those around it. */
const scopes = new AsyncLocalStorage();

class Locks {
  #servers;
  #client; // what the parts of a client share

  constructor(urls, options) {
    const { meta, onEvent, ...others } = clientOptions(options);
    this.#servers = new Servers(urls, others);
    const emit = (kind, name, ms) => {
      if (onEvent) void (async () => onEvent({ kind, name, seconds: ms / 1000 }))().catch(() => {});
    };
    this.#client = { servers: this.#servers, keeper: new Keeper(this.#servers), meta, emit };
  }

  async lock(name, options) {
    return this.#lock(nameOf(name), lockOptions(options));
  }

  async #lock(name, options) { return new Lease(await acquire(this.#client, name, options)); }

  async tryLock(name, options) {
    const o = lockOptions(options, TRY);
    return orNull(this.#lock(nameOf(name), { ...o, wait: 0 }));
  }

  async lockAll(names, options) {
    return this.#lockAll(sorted(names), lockOptions(options));
  }

  async #lockAll(names, options) {
    const end = performance.now() + options.wait;
    const holds = [];
    try {
      for (const name of names) {
        const over = anyOf([options.signal, ...holds.map((h) => h.signal)].filter(Boolean));
        const o = { ...options, wait: Math.max(0, end - performance.now()), signal: over.signal };
        holds.push(await acquire(this.#client, name, o).finally(over.end));
      }
      return new Leases(holds.map((h) => new Lease(h)));
    } catch (e) {
      await Promise.allSettled(holds.map((h) => h.release({ unused: true })));
      throw e;
    }
  }

  async using(names, options, work) {
    if (typeof options === "function" && work === undefined) [options, work] = [{}, options];
    if (typeof work !== "function") {
      throw new TypeError("using wants a function: using(name, options, async (lease) => { … })");
    }
    if (Array.isArray(names)) return under(await this.lockAll(names, options), work);
    const name = nameOf(names);
    const o = lockOptions(options, USING);
    const outer = o.reentrant ? this.#outer(name, o) : undefined;
    if (outer) return work(outer.lease);
    const lease = await this.#lock(name, o);
    const scope = { locks: this, name, mode: o.mode, limit: o.limit, lease, around: scopes.getStore(), ended: false };
    return scopes.run(scope, () => under(lease, async () => {
      try {
        return await work(lease);
      } finally {
        scope.ended = true; // what work has left running is not under the lock
      }
    }));
  }

  /** Returns the scope that holds the lock already, if the running function is called in one that has not ended. */
  #outer(name, { mode, limit }) {
    let scope = scopes.getStore();
    while (scope && (scope.locks !== this || scope.name !== name || scope.ended)) scope = scope.around;
    if (scope === undefined) return undefined;
    if (scope.mode !== mode || scope.limit !== limit) throw new Invalid(`${quote(name)} is held here in another mode or with another limit`);
    scope.lease.check();
    return scope;
  }

  async elect(name, lead, options = {}) {
    nameOf(name);
    if (typeof lead !== "function") throw new TypeError("elect wants a function: elect(name, async (lease, signal) => { … })");
    const { signal, ...o } = electOptions(options);
    for (;;) {
      const lease = await this.#lock(name, { ...o, signal });
      if (await term(lease, lead, signal)) await away(signal);
      signal?.throwIfAborted();
    }
  }

  async locked(name) { return (await inspect(this.#servers, nameOf(name))).length > 0; }

  async holder(name) { return (await inspect(this.#servers, nameOf(name)))[0] ?? null; }
}

async function orNull(lease) {
  try {
    return await lease;
  } catch (e) {
    if (e instanceof Held) return null;
    throw e;
  }
}

/** Calls work under a lease, and releases it. An error of the work is never hidden by one of the release. */
async function under(lease, work) {
  let result;
  try {
    result = await work(lease);
  } catch (e) {
    await lease.release().catch(() => {});
    throw e;
  }
  await done(lease);
  return result;
}

/** Leads for one term. It reports whether the term was given up, and not lost. */
async function term(lease, lead, signal) {
  const over = anyOf([lease.signal, signal].filter(Boolean));
  try {
    await lead(lease, over.signal);
    return lease.remaining > 0;
  } catch (e) {
    if (lease.remaining > 0 && !signal?.aborted) throw e; // else it is what the end of the term led to
    return false;
  } finally {
    over.end();
    await lease.release().catch(() => {});
  }
}

async function away(signal) {
  const end = performance.now() + AWAY;
  while (performance.now() < end && !signal?.aborted) await pause(6, end, { signal });
}

/** Returns names in the order in which all clients take them: that of their bytes. */
function sorted(names) {
  if (!Array.isArray(names) || names.length === 0) throw new TypeError("lockAll wants a list of the names of locks, at least one");
  const all = names.map((n) => Buffer.from(nameOf(n))).sort(Buffer.compare).map(String);
  const twice = all.find((name, i) => name === all[i + 1]);
  if (twice !== undefined) throw new TypeError(`${quote(twice)} is named twice: want each lock once`);
  return all;
}

module.exports = { Locks };
