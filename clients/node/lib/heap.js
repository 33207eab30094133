"use strict";

/** Items in the order of when they want attention. An item has its time in at and its place in place, which only Heap changes. */
class Heap {
  #items = [];

  get first() { return this.#items[0]; }

  /** Puts an item where its new time belongs. Infinity takes it out. */
  set(item, at) {
    if (item.place !== undefined) this.#remove(item);
    if (at === Infinity) return;
    item.at = at;
    this.#up(this.#items.length, item);
  }

  #remove(item) {
    const last = this.#items.pop();
    if (last !== item) {
      const above = this.#items[(item.place - 1) >> 1];
      if (item.place > 0 && last.at < above.at) this.#up(item.place, last);
      else this.#down(item.place, last);
    }
    item.place = undefined;
  }

  #up(place, item) {
    while (place > 0) {
      const above = (place - 1) >> 1;
      if (this.#items[above].at <= item.at) break;
      this.#put(place, this.#items[above]);
      place = above;
    }
    this.#put(place, item);
  }

  #down(place, item) {
    for (;;) {
      let below = 2 * place + 1;
      if (below + 1 < this.#items.length && this.#items[below + 1].at < this.#items[below].at) below++;
      if (below >= this.#items.length || this.#items[below].at >= item.at) break;
      this.#put(place, this.#items[below]);
      place = below;
    }
    this.#put(place, item);
  }

  #put(place, item) {
    this.#items[place] = item;
    item.place = place;
  }
}

module.exports = { Heap };
