"use strict";

const { onAbort } = require("./abort.js");

/** A bounded number of requests at a time. Those that come later wait in their order. */
class Slots {
  #free;
  #size;
  #queue = new Set();

  constructor(size) {
    this.#free = this.#size = size;
  }

  /** Reports whether so many are in use that those who wait should ask often, so that others get their turn. */
  get crowded() { return 2 * this.#free < this.#size; }

  /** Takes a slot if one is free. */
  tryTake() {
    if (this.#free === 0) return false;
    this.#free--;
    return true;
  }

  give() {
    const [next] = this.#queue;
    if (next) next(true);
    else this.#free++;
  }

  /** Waits for a slot, for ms at most or until the signal is aborted. It reports whether it has one. */
  async take(ms = Infinity, signal) {
    if (this.tryTake()) return true;
    return new Promise((resolve) => {
      const end = (taken) => {
        clearTimeout(timer);
        this.#queue.delete(end);
        forget();
        resolve(taken);
      };
      // It also keeps the process alive for who waits.
      const timer = ms < 2 ** 31 ? setTimeout(end, ms, false) : setInterval(() => {}, 2 ** 30);
      this.#queue.add(end);
      const forget = onAbort(signal, () => end(false));
    });
  }

  /** Calls f with a slot. */
  async use(f) {
    await this.take();
    try {
      return await f();
    } finally {
      this.give();
    }
  }
}

module.exports = { Slots };
