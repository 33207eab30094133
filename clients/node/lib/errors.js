"use strict";

/** What is wrong, as classes of errors; see distlock.d.ts. */

class DistlockError extends Error {}

class Held extends DistlockError {
  constructor(name, holders) {
    const who = holders.map(({ meta: { program = "?", pid = "?", host = "?" } }) => `${program} (pid ${pid} on ${host})`);
    super(`${quote(name)} is held by ${printable(who.join(", ")) || "another"}`);
    this.holders = holders;
  }
}

class Lost extends DistlockError {}
class Invalid extends DistlockError {}
class Denied extends DistlockError {}
class Unavailable extends DistlockError {}

// A minifier renames classes, and a name that is a property of each error would be printed with it.
for (const [name, error] of Object.entries({ DistlockError, Held, Lost, Invalid, Denied, Unavailable })) {
  Object.defineProperty(error.prototype, "name", { value: name, configurable: true, writable: true });
}

/** Which errors end a wait, by the kind of the answer. */
const FINAL = { __proto__: null, invalid: Invalid, unsupported: Invalid, denied: Denied, other: Unavailable };

const quote = (name) => JSON.stringify(name);

/** Others may have put anything into what they are called. */
const printable = (text) => text.replace(/\p{C}/gu, "?");

module.exports = { DistlockError, Held, Lost, Invalid, Denied, Unavailable, FINAL, quote };
