"use strict";

/** Locks of a distlock server. distlock.d.ts is the reference. */

const { Denied, DistlockError, Held, Invalid, Lost, Unavailable } = require("./lib/errors.js");
const { Locks } = require("./lib/locks.js");

module.exports = { Denied, DistlockError, Held, Invalid, Locks, Lost, Unavailable };
