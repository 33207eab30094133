// The same classes for import as for require: an error of one is an instance of the other's.
import distlock from "./distlock.js";

export const { Denied, DistlockError, Held, Invalid, Locks, Lost, Unavailable } = distlock;
