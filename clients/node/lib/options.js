"use strict";

/** What users give, checked before any request. */

const path = require("node:path");
const os = require("node:os");

const LOCK = ["ttl", "wait", "signal", "mode", "limit", "minHold", "maxHold", "renew", "meta", "onLost"];
const TRY = LOCK.filter((o) => o !== "wait");
const USING = [...LOCK, "reentrant"];
const ELECT = ["ttl", "signal", "meta"];
const MODES = ["exclusive", "write", "read"];
const CLIENT = ["token", "tokenFile", "tls", "certFile", "keyFile", "caFile", "meta", "onEvent", "connections"];

/** What other libraries call it. */
const PEERS = {
  timeout: "wait", maxWait: "wait", acquireTimeout: "wait", waitTime: "wait", retryCount: "wait", retries: "wait", retryDelay: "wait", retryJitter: "wait",
  blocking: "tryLock, or wait: 0", noWait: "tryLock, or wait: 0", duration: "ttl", expire: "ttl", expiry: "ttl", leaseTime: "ttl", lockTimeout: "ttl",
  automaticExtensionThreshold: "renew: leases are renewed by themselves", autoExtend: "renew: leases are renewed by themselves", permits: "limit",
};

function known(options, names) {
  if (options === null || typeof options !== "object" || Array.isArray(options)) {
    throw new TypeError(`the options are ${shown(options)}: want an object`);
  }
  for (const o of Object.keys(options)) {
    if (o === "reentrant") throw new TypeError("reentrant is an option of using with one name: only a function says where a hold ends");
    const hint = Object.hasOwn(PEERS, o) ? PEERS[o] : names.join(", ");
    if (!names.includes(o)) throw new TypeError(`there is no option ${JSON.stringify(o)} here: want ${hint}`);
  }
}

function nameOf(name) {
  if (name === "") throw new TypeError("the name of the lock is empty");
  if (typeof name !== "string") throw new TypeError(`the name of the lock is ${shown(name)}: want a string that is not empty`);
  if (Buffer.from(name).toString() !== name) throw new TypeError("the name of the lock is no Unicode: it has half of a surrogate pair");
  return name;
}

/** Returns the options of one lock with their defaults. */
function lockOptions(options = {}, names = LOCK) {
  const { reentrant = false, ...others } = options ?? {};
  known(options !== null && names.includes("reentrant") ? others : options, names);
  const { ttl = 30_000, wait = Infinity, signal, mode = "exclusive", limit, minHold = 0, maxHold = Infinity, renew = true, meta = {}, onLost } = others;
  wantTTL(ttl);
  want(ttl <= 3_600_000 || renew === false, "ttl", ttl, "milliseconds, at most an hour for a lease that is renewed: 3_600_000; for a longer one renew: false");
  want(typeof wait === "number" && wait >= 0, "wait", wait, "milliseconds, or none to wait for ever");
  want(Number.isFinite(minHold) && minHold >= 0, "minHold", minHold, "milliseconds");
  wantMilliseconds("minHold", minHold);
  want(typeof maxHold === "number" && maxHold > minHold, "maxHold", maxHold, "milliseconds, more than minHold");
  wantMilliseconds("maxHold", maxHold);
  want(typeof renew === "boolean", "renew", renew, "true or false");
  want(typeof reentrant === "boolean", "reentrant", reentrant, "true or false");
  want(renew || minHold <= ttl, "minHold", minHold, "no more than the ttl of a lease that is not renewed");
  want(MODES.includes(mode), "mode", mode, "exclusive, write or read; a semaphore has a limit");
  want(limit === undefined || (Number.isInteger(limit) && limit > 0), "limit", limit, "how many may hold at once");
  want(limit === undefined || mode === "exclusive", "mode", mode, "none beside limit, which makes a semaphore");
  want(onLost === undefined || typeof onLost === "function", "onLost", onLost, "a function");
  wantSignal(signal);
  return { ttl, wait, minHold, maxHold, signal, mode: limit === undefined ? mode : "counted", limit, renew, meta: metaOf(meta), onLost, reentrant };
}

function electOptions(options) {
  known(options, ELECT);
  return lockOptions(options);
}

function clientOptions(options = {}) {
  known(options, CLIENT);
  const { tls = {}, meta = {}, onEvent, connections = 64, ...files } = options;
  want(onEvent === undefined || typeof onEvent === "function", "onEvent", onEvent, "a function");
  want(Number.isInteger(connections) && connections > 1, "connections", connections, "how many requests may be under way at once, at least 2");
  want(tls !== null && typeof tls === "object", "tls", tls, "options of node:tls, such as ca");
  const program = path.basename(process.argv[1] ?? "node");
  const shownMeta = { host: os.hostname(), pid: String(process.pid), program, ...metaOf(meta) };
  return { ...files, tls, meta: shownMeta, onEvent, connections };
}

function metaOf(meta) {
  want(meta !== null && typeof meta === "object", "meta", meta, "an object of strings");
  for (const [key, value] of Object.entries(meta)) want(typeof value === "string", `meta.${key}`, value, "a string");
  return meta;
}

function wantTTL(ttl) {
  want(Number.isFinite(ttl) && ttl > 0, "ttl", ttl, "milliseconds, more than 0");
  wantMilliseconds("ttl", ttl);
}

/** Refuses what seconds look like. */
function wantMilliseconds(option, time) {
  if (time > 0 && time < 100) want(false, option, time, `milliseconds: ${time * 1000} for ${time} s, and at least 100`);
}

function wantSignal(signal) {
  want(signal === undefined || typeof signal?.addEventListener === "function", "signal", signal, "an AbortSignal");
}

function want(isRight, option, value, right) {
  if (!isRight) throw new TypeError(`${option} is ${shown(value)}: want ${right}`);
}

const shown = (value) => (typeof value === "string" ? JSON.stringify(value) : typeof value === "object" && value !== null ? "an object" : String(value));

/** Returns a URL without what may be a password, a token or a path to one. */
function harmless(url) {
  const text = String(url).slice(0, 200).replace(/^([^/]*:\/\/|).*@/s, "$1…@").replace(/[?#].*/s, "?…");
  return JSON.stringify(text.replace(/\p{C}/gu, "?"));
}

/** Returns where a server is. The usual error of new URL has the text, in which there may be a password. */
function parseURL(text) {
  const wrong = `the URL of a server is ${harmless(text)}: want one such as http://host:7077, https://host or http+unix:///run/distlock.sock; a token is an option of its own`;
  let u, socketPath;
  try {
    u = new URL(text);
    socketPath = decodeURIComponent(u.pathname);
  } catch {
    throw new TypeError(wrong);
  }
  const unix = u.protocol === "http+unix:" && u.host === "" && u.pathname.length > 1;
  const tcp = ["http:", "https:"].includes(u.protocol);
  if (!(unix || tcp) || u.username || u.password || u.search || u.hash) throw new TypeError(wrong);
  if (unix) {
    return { secure: false, target: { socketPath }, prefix: "", shown: `http+unix://${socketPath}` };
  }
  const target = { hostname: u.hostname.replace(/^\[|\]$/g, ""), port: u.port || undefined };
  const prefix = u.pathname.replace(/\/+$/, "");
  return { secure: u.protocol === "https:", target, prefix, shown: u.origin + prefix };
}

module.exports = { nameOf, wantTTL, lockOptions, electOptions, clientOptions, parseURL, TRY, USING };
