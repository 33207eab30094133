"use strict";

/** One timer for all holds of a client, which renews them together. */

const { Heap } = require("./heap.js");
const { timeout } = require("./servers.js");

const JOIN = 500; // ms by which a renewal may be earlier to join others
const MOST = 500; // holds in one request: less than a server takes
const BYTES = 1 << 20; // of a request: less than a server takes
const LONGEST = 2 ** 31 - 1; // ms of a timer

class Keeper {
  #servers;
  #heap = new Heap();
  #timer;
  #armed = Infinity; // when the timer runs

  constructor(servers) {
    this.#servers = servers;
  }

  /** Notes when a hold wants attention next. */
  schedule(hold) {
    this.#heap.set(hold, hold.next());
    if (this.#heap.first?.at < this.#armed) this.#arm();
  }

  /** The timer does not keep the process alive: a lock is for work, and without work its TTL ends it. */
  #arm() {
    clearTimeout(this.#timer);
    this.#armed = this.#heap.first?.at ?? Infinity;
    if (this.#armed === Infinity) return;
    const wait = Math.min(Math.max(Math.ceil(this.#armed - performance.now()), 0), LONGEST);
    this.#timer = setTimeout(() => this.#tick(), wait).unref();
  }

  /** Looks at the holds whose time comes, and renews those that may be renewed now. */
  #tick() {
    const now = performance.now();
    const holds = [];
    for (let hold; (hold = this.#heap.first)?.at <= now + JOIN; holds.push(hold)) this.#heap.set(hold, Infinity);
    const due = new Map(); // by the size of their TTL, since the shortest says how long the request may take
    for (const hold of holds) {
      hold.look();
      if (!hold.wantsRenewal(now + Math.min(JOIN, hold.ttl / 12))) continue;
      const size = Math.floor(Math.log2(hold.ttl));
      if (!due.has(size)) due.set(size, []);
      due.get(size).push(hold);
    }
    for (const group of due.values()) {
      for (const part of parts(group)) void this.#renew(part);
    }
    for (const hold of holds) this.#heap.set(hold, hold.next());
    this.#arm();
  }

  /** Renews holds in one request. Each hears what became of it as soon as the server says so. */
  async #renew(part) {
    const start = performance.now();
    const pending = new Map(part.entries());
    const heard = (i, outcome) => {
      if (!pending.has(i)) return;
      const { hold, body } = pending.get(i);
      pending.delete(i);
      hold.renewed(start, body.ttl_ms, outcome);
    };
    for (const { hold } of part) hold.busy = true;
    const bodies = part.map(({ body }) => body);
    const most = timeout(Math.min(...bodies.map(({ ttl_ms }) => ttl_ms)));
    await renew(this.#servers, bodies, { most, background: true, heard });
    for (const i of pending.keys()) heard(i, "unknown");
  }
}

/** Sends one renewal. heard is called with the number of a hold, its outcome and why. It returns why there is no more. */
async function renew(servers, holds, { most, background, heard }) {
  const line = ({ index, outcome, detail }) => {
    heard(index, outcome, detail);
    return outcome === "ok" || outcome === "lost";
  };
  const [, { detail = "no answer for this hold" }] = await servers.call("renew", { holds }, { most, background, line });
  return detail;
}

/** Divides holds into requests that a server takes. */
function parts(holds) {
  const all = [[]];
  let bytes = 0;
  for (const hold of holds) {
    const body = hold.renewal();
    const size = Buffer.byteLength(JSON.stringify(body));
    if (all.at(-1).length >= MOST || bytes + size > BYTES) {
      all.push([]);
      bytes = 0;
    }
    bytes += size;
    all.at(-1).push({ hold, body });
  }
  return all;
}

module.exports = { Keeper, renew };
