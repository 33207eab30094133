"use strict";

/** What users have of a lock; see distlock.d.ts. */

const { anyOf } = require("./abort.js");
const { Lost, Unavailable } = require("./errors.js");
const { wantTTL } = require("./options.js");

class Lease {
  #hold;
  #released;

  constructor(hold) {
    this.#hold = hold;
    this.release = () => (this.#released ??= hold.release()); // a function of its own is why structuredClone refuses it
    hold.belongsTo(this);
  }

  get name() { return this.#hold.name; }

  get fence() { return this.#hold.fence; }

  get signal() { return this.#hold.signal; }

  get remaining() { return this.#hold.remaining; }

  check() { this.#hold.check(); }

  async extend(ttl) {
    wantTTL(ttl);
    await this.#hold.extend(ttl);
  }

  toJSON() { return { name: this.name, fence: String(this.fence) }; } // there is no BigInt in JSON
}

/** Several leases as one. */
class Leases {
  #leases;
  #signal;
  #released;

  constructor(leases) {
    this.#leases = leases;
    this.release = () => (this.#released ??= this.#release());
  }

  get leases() { return [...this.#leases]; }

  get signal() { return (this.#signal ??= anyOf(this.#leases.map((l) => l.signal)).signal); }

  get remaining() { return Math.min(...this.#leases.map((l) => l.remaining)); }

  check() {
    for (const lease of this.#leases) lease.check();
  }

  async extend(ttl) { await Promise.all(this.#leases.map((l) => l.extend(ttl))); }

  toJSON() { return this.leases; }

  /** Releases all, whatever becomes of each: Lost is the worst of what may become of one. */
  async #release() {
    const results = await Promise.allSettled(this.#leases.map((l) => l.release()));
    const errors = results.filter(({ status }) => status === "rejected").map(({ reason }) => reason);
    if (errors.length > 0) throw errors.find((e) => e instanceof Lost) ?? errors[0];
  }
}

/** Releases at the end of work. That there is no answer harms nobody: the work is done, and the TTL ends the lock. */
async function done(lease) {
  try {
    await lease.release();
  } catch (e) {
    if (!(e instanceof Unavailable)) throw e;
  }
}

const disposed = new WeakSet();

/** Ends the scope of a lease. Another one would run, at least in part, without the lock. */
async function dispose(lease) {
  if (disposed.has(lease)) throw again();
  disposed.add(lease);
  await done(lease);
}

const again = () => new Lost("the lease has ended with its first await using: take the lock again for each");

if (Symbol.asyncDispose) { // Node 18.18 or later has it
  for (const { prototype } of [Lease, Leases]) {
    Object.defineProperty(prototype, Symbol.asyncDispose, {
      get() { // is read where a scope begins
        if (disposed.has(this)) throw again();
        return () => dispose(this);
      },
      configurable: true,
    });
  }
}

module.exports = { Lease, Leases, done };
