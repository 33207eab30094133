"use strict";

/** Aborted signals. A signal gets one listener of ours, however many calls it is given to: Node warns of more than ten. */

const calls = new WeakMap(); // by signal: what is to be called

/** Calls f when a signal is aborted, soon if it was before. It returns a function that ends that. */
function onAbort(signal, f) {
  if (signal === undefined || signal.aborted) {
    if (signal) queueMicrotask(f);
    return () => {};
  }
  const all = calls.get(signal) ?? listen(signal);
  all.add(f);
  return () => {
    all.delete(f);
    if (all.size === 0) all.end();
  };
}

function listen(signal) {
  const all = new Set();
  const listener = () => {
    all.end();
    for (const f of all) f();
  };
  all.end = () => {
    signal.removeEventListener("abort", listener);
    calls.delete(signal);
  };
  calls.set(signal, all);
  signal.addEventListener("abort", listener);
  return all;
}

/** Returns a signal that is aborted with the first of several, until end is called. */
function anyOf(signals) {
  const any = new AbortController();
  const ends = signals.map((signal) => {
    if (signal.aborted) any.abort(signal.reason);
    return onAbort(signal, () => any.abort(signal.reason));
  });
  return { signal: any.signal, end: () => ends.forEach((end) => end()) };
}

module.exports = { onAbort, anyOf };
