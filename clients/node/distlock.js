/**
 * Locks of a distlock server, for Node 18 or later, without dependencies.
 *
 *     const locks = new Locks("http://127.0.0.1:7077");
 *     await locks.with("report", { ttl: 30_000, wait: 10_000 }, async (lease) => {
 *       await write(report, { fence: lease.fence, signal: lease.signal });
 *     });
 *
 * Times are in milliseconds. README.md says what holds and what does not.
 */

import { randomUUID } from "node:crypto";
import http from "node:http";
import https from "node:https";
import os from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const POLL = 20_000; // for which one request waits: less than a server's limit, and than proxies allow
const MOST = 1 << 20; // bytes of an answer
const LONGEST = 2 ** 31 - 1; // of a timer
const NOT_CONNECTED = new Set(["ECONNREFUSED", "ENOENT", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH"]);

/** The base of all errors here. */
export class DistlockError extends Error {
  get name() { return this.constructor.name; }
}

/** Others hold the lock. holders has what is known of them: mode, fence, held_ms, left_ms, meta. */
export class Held extends DistlockError {
  constructor(name, holders) {
    const who = holders.map(({ meta: { program = "?", pid = "?", host = "?" } = {} }) => `${program} (pid ${pid} on ${host})`);
    // Others may have put anything into meta.
    super(`${JSON.stringify(name)} is held by ${who.join(", ").replace(/\p{C}/gu, "?") || "another"}`);
    this.holders = holders;
  }
}

/** The lock was lost: others may hold it now. */
export class Lost extends DistlockError {}

/** The server does not accept the request, or its backend can't do that. */
export class Invalid extends DistlockError {}

/** The token is missing, wrong, or has no right to this lock. */
export class Denied extends DistlockError {}

/** No server gave an answer in time. The outcome is not known, but the lock is not used. */
export class Unavailable extends DistlockError {}

const FINAL = { invalid: Invalid, unsupported: Invalid, denied: Denied, other: Unavailable };
const NO_ANSWER = new Set(["unknown", "unsent", "other"]);
const FACTS = new Set(["held", "lost", "invalid", "unsupported", "denied", "unsent"]);

/**
 * The locks of a server, or of several servers before the same backend.
 *
 * urls are one or several such as http://host:7077, https://host or http+unix:///run/distlock.sock. tls has
 * options of node:tls for https, such as ca. meta is shown to others beside host, pid and program.
 */
export class Locks {
  #urls;
  #at = 0; // the server in use
  #backend; // the name of the first one seen
  #headers = { "Content-Type": "application/json" };
  #meta;
  #agents;

  constructor(urls, { token, tls = {}, meta = {} } = {}) {
    this.#urls = [urls].flat().map(parse);
    if (this.#urls.length === 0) throw new TypeError("Locks wants the URL of a server");
    if (token !== undefined) {
      if (!/^[!-~]+$/.test(token)) throw new TypeError("the token has characters that a header can't have");
      this.#headers.Authorization = `Bearer ${token}`;
    }
    const program = path.basename(process.argv[1] ?? "node");
    this.#meta = { host: os.hostname(), pid: String(process.pid), program, ...meta };
    this.#agents = {
      "http:": new http.Agent({ keepAlive: true }),
      "https:": new https.Agent({ keepAlive: true, ...tls }),
    };
  }

  /** Calls work with a lease, and releases it afterwards. The options are those of lock. */
  async with(name, options, work) {
    const lease = await this.lock(name, options);
    let result;
    try {
      result = await work(lease);
    } catch (e) {
      await lease.release().catch(() => {});
      throw e;
    }
    await lease.release().catch((e) => {
      if (e instanceof Lost) throw e; // else the work is done, and the TTL ends the lock
    });
    return result;
  }

  /**
   * Takes a lock and returns its Lease. ttl is how long the lock outlives this process if it dies. wait is for
   * how long to wait: 0 is one try, without it there is no end; signal ends the wait too. mode is
   * exclusive, write or read; limit makes it a semaphore with so many permits.
   *
   * It throws Held, Invalid, Denied or Unavailable, or the reason of signal.
   */
  async lock(name, { ttl = 30_000, wait = Infinity, mode = "exclusive", limit, signal } = {}) {
    if (!(ttl > 0 && ttl < Infinity)) throw new TypeError(`ttl is ${ttl}: want milliseconds, more than 0`);
    if (!(wait >= 0)) throw new TypeError(`wait is ${wait}: want milliseconds, or Infinity`);
    const hold = { name, owner: randomUUID(), mode: limit === undefined ? mode : "counted" };
    const request = { ...hold, limit, ttl_ms: Math.ceil(ttl), meta: this.#meta };
    const end = performance.now() + wait;
    let taken = false; // whether a server may have a hold of this owner, or a place in the queue
    let unsure = false; // whether a request of this owner had no answer
    try {
      for (let tries = 1, failures = 0; ; tries++) {
        signal?.throwIfAborted();
        const start = performance.now();
        const poll = Math.floor(Math.max(0, Math.min(POLL, end - start)));
        let [kind, answer] = await this.#call("acquire", { ...request, wait_ms: poll }, poll + timeout(ttl), signal);
        taken ||= poll > 0 || kind === "ok" || kind === "unknown";
        if (kind === "ok") {
          const now = performance.now();
          const waited = Math.min(answer.waited_ms, now - start); // no server has waited for longer than its answer took
          const until = start + waited + answer.ttl_ms - margin(ttl);
          if (now < until && /^\d+$/.test(answer.fence)) {
            return new Lease(this.#calls, hold, ttl, until, BigInt(answer.fence));
          }
          [kind, answer] = ["unknown", { detail: "the answer came too late" }];
        }
        unsure ||= kind === "unknown";
        if (answer.spent === true) { // the owner was released, perhaps late: it must make no other attempt
          if (unsure) await this.#calls.release({ ...hold }, performance.now() + timeout(ttl), timeout(ttl));
          hold.owner = request.owner = randomUUID();
          taken = unsure = false;
        }
        signal?.throwIfAborted();
        if (kind in FINAL) throw new FINAL[kind](answer.detail);
        failures = kind === "held" ? 0 : failures + 1;
        const over = performance.now() >= end;
        if (over && kind === "held") throw new Held(name, answer.holders ?? []);
        if (over && tries >= 2 * this.#urls.length) throw new Unavailable(answer.detail);
        await pause(failures, end, signal);
      }
    } catch (e) {
      if (taken) await this.#calls.release(hold, performance.now() + timeout(ttl), timeout(ttl));
      throw e;
    }
  }

  #calls = {
    /** Releases until an answer, for a few tries. Returns what became of it. */
    release: async (hold, until, most) => {
      let unknown = false;
      let result;
      for (let n = 0; n < 2 + 2 * this.#urls.length; n++) {
        if (n > 0) await pause(n, until);
        if (n > 0 && performance.now() >= until) break;
        let [kind, answer] = await this.#call("release", hold, most);
        if (kind === "lost" && unknown) kind = "ok"; // an earlier request has released it
        if (!NO_ANSWER.has(kind)) return [kind, answer];
        unknown ||= kind === "unknown";
        result = ["unknown", answer];
      }
      return result;
    },

    renew: async (hold, ttl, signal) => {
      const body = { holds: [{ ...hold, ttl_ms: Math.ceil(ttl) }] };
      const [kind, answer] = await this.#call("renew", body, timeout(ttl), signal);
      return kind === "ok" ? answer.outcome : "unknown";
    },
  };

  /** Sends one request to the server in use, and goes to the next one if that gives no answer. */
  async #call(call, body, most, signal) {
    const at = this.#at;
    let [kind, answer] = await this.#exchange(this.#urls[at], call, JSON.stringify(body), most, signal);
    if (call === "renew" && kind === "ok" && NO_ANSWER.has(answer.outcome ?? "unknown")) {
      kind = "unknown"; // the server works, and its backend does not
    }
    if (NO_ANSWER.has(kind) && !signal?.aborted && this.#at === at) this.#at = (at + 1) % this.#urls.length;
    return [kind, answer];
  }

  /** Returns what the answer states as a fact, or unknown; unsent if nothing was taken. */
  async #exchange(url, call, body, most, signal) {
    const id = randomUUID();
    const headers = { ...this.#headers, "Content-Length": Buffer.byteLength(body), "Distlock-Request": id };
    if (this.#backend !== undefined) headers["Distlock-Backend"] = this.#backend;
    const target = url.protocol === "http+unix:"
      ? { socketPath: url.path, path: `/v1/${call}`, agent: this.#agents["http:"] }
      : { hostname: url.hostname, port: url.port, path: `${url.path}/v1/${call}`, agent: this.#agents[url.protocol] };
    let response, answer;
    try {
      const client = url.protocol === "https:" ? https : http;
      response = await send(client, { ...target, method: "POST", headers }, body, most, signal);
      answer = response.status === 204 ? {} : JSON.parse(response.text);
    } catch (e) {
      const why = response ? `status ${response.status}, and no JSON` : (e.code ?? e.name);
      return [NOT_CONNECTED.has(e.code) ? "unsent" : "unknown", { detail: `${url.shown}: ${why}` }];
    }
    if (response.headers["distlock-request"] !== id) { // a proxy's, or to another request
      return ["unknown", { detail: `${url.shown}: status ${response.status}` }];
    }
    return this.#judge(url, response, answer !== null && typeof answer === "object" ? answer : {});
  }

  #judge(url, { status, headers }, answer) {
    answer = { detail: `${url.shown}: status ${status}`, ...answer };
    const backend = headers["distlock-backend"];
    if (status === 421 && answer.distlock !== undefined) return ["other", { detail: answer.detail }]; // not the server that is meant
    if (backend === undefined) { // the server doesn't know us
      return [status === 401 && answer.distlock === "denied" ? "denied" : "unknown", { detail: answer.detail }];
    }
    this.#backend ??= backend;
    if (backend !== this.#backend) {
      const detail = `${url.shown} is before another backend than the first server: ${backend}, not ${this.#backend}`;
      return ["other", { detail }];
    }
    if (status === 200 || status === 204) return ["ok", answer];
    return [FACTS.has(answer.distlock) ? answer.distlock : "unknown", answer];
  }
}

/**
 * A lock that is held. It is renewed until it is released or lost.
 *
 * signal is an AbortSignal, aborted with a Lost when the lease is lost, before another can have the lock. fence is
 * a BigInt that grows with each holder, for the storage to compare.
 */
export class Lease {
  #calls;
  #hold;
  #ttl;
  #deadline; // of performance.now(); only a renewal in time moves it
  #state = "held"; // released or lost at the end
  #gone = false; // the server said that it is lost
  #loss = new AbortController();
  #end = new AbortController(); // ends a renewal in flight
  #watch;
  #renewal;

  /** Locks.lock makes leases. */
  constructor(calls, hold, ttl, deadline, fence) {
    this.name = hold.name;
    this.fence = fence;
    [this.#calls, this.#hold, this.#ttl, this.#deadline] = [calls, hold, ttl, deadline];
    this.#arm();
    this.#schedule(deadline + margin(ttl) - (ttl * 2) / 3 - performance.now());
  }

  get signal() { return this.#loss.signal; }

  /** For how many milliseconds the lease is trusted if no renewal succeeds; 0 once it has ended. */
  get remaining() { return this.#state === "held" ? Math.max(0, this.#deadline - performance.now()) : 0; }

  /** Throws Lost if the lease has ended. It compares the clock itself, in case no timer could run. */
  check() {
    if (this.remaining > 0) return;
    this.#lose();
    throw new Lost(`${JSON.stringify(this.name)} ${this.#state === "lost" ? "is lost" : "was released"}`);
  }

  /**
   * Releases the lock. It throws Lost if it was lost before, Unavailable if no server has confirmed it: then
   * it ends with its TTL. Another call does nothing, or throws Lost again.
   */
  async release() {
    if (this.#state === "held" && this.remaining === 0) this.#lose();
    if (this.#state === "released") return;
    const lost = this.#state === "lost";
    if (!lost) this.#finish("released");
    let [kind, answer] = ["lost", {}];
    if (!this.#gone) { // one that is lost by the clock may live on at the backend
      [kind, answer] = await this.#calls.release(this.#hold, lost ? 0 : this.#deadline, timeout(this.#ttl));
    }
    this.#gone = true;
    if (lost || kind === "lost") throw new Lost(`${JSON.stringify(this.name)} was lost before its release`);
    if (kind !== "ok") {
      throw new Unavailable(`the release of ${JSON.stringify(this.name)} was not confirmed: ${answer.detail}`);
    }
  }

  #finish(state) {
    this.#state = state;
    clearTimeout(this.#watch);
    clearTimeout(this.#renewal);
    this.#end.abort();
  }

  #lose() {
    if (this.#state !== "held") return;
    this.#finish("lost");
    this.#loss.abort(new Lost(`${JSON.stringify(this.name)} is lost`));
  }

  #arm() {
    const left = Math.ceil(this.remaining);
    this.#watch = setTimeout(() => (this.remaining > 0 ? this.#arm() : this.#lose()), Math.min(left, LONGEST));
  }

  #schedule(after) {
    this.#renewal = setTimeout(() => this.#renew(), Math.min(Math.max(after, 0), LONGEST));
  }

  async #renew() {
    const start = performance.now();
    const outcome = await this.#calls.renew(this.#hold, this.#ttl, this.#end.signal);
    if (this.#state !== "held") return;
    if (this.remaining === 0) return this.#lose(); // whatever the answer
    if (outcome === "lost") {
      this.#gone = true;
      return this.#lose();
    }
    const ok = outcome === "ok";
    if (ok) this.#deadline = Math.max(this.#deadline, start + this.#ttl - margin(this.#ttl));
    this.#schedule(ok ? start + this.#ttl / 3 - performance.now() : this.#ttl / 30);
  }
}

/** How long before the end of the TTL a lease is lost: for clocks of different speed, and time to stop. */
const margin = (ttl) => Math.min(ttl / 10, 1000);

/** How long one request may take, beside the time that it waits for the lock. */
const timeout = (ttl) => Math.min(ttl / 3, 5000);

async function pause(failures, end, signal) {
  const time = Math.min(1000, 25 * 2 ** Math.min(failures, 10)) * (0.5 + Math.random() / 2);
  await sleep(Math.max(0, Math.min(time, end - performance.now())), undefined, { signal }).catch(() => {}); // aborted
}

function parse(text) {
  const wrong = "want URLs such as http://host:7077, https://host or http+unix:///run/distlock.sock; " +
    "a token is an option of its own";
  let u;
  try {
    u = new URL(text);
  } catch {
    throw new TypeError(wrong); // the usual error has the text
  }
  const unix = u.protocol === "http+unix:" && u.host === "" && u.pathname.startsWith("/");
  const tcp = ["http:", "https:"].includes(u.protocol);
  if (!(unix || tcp) || u.username || u.password || u.search || u.hash) throw new TypeError(wrong);
  const file = unix ? decodeURIComponent(u.pathname) : u.pathname.replace(/\/+$/, "");
  const shown = unix ? `http+unix://${file}` : u.origin;
  return { protocol: u.protocol, hostname: u.hostname.replace(/^\[|\]$/g, ""), port: u.port || undefined, path: file, shown };
}

/** Sends one request, and reads the whole answer. Nothing takes longer than most. */
function send(client, options, body, most, signal) {
  return new Promise((resolve, reject) => {
    const request = client.request(options, (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (part) => {
        text += part;
        if (text.length > MOST) request.destroy(new Error("too long"));
      });
      response.on("end", () => resolve({ status: response.statusCode, headers: response.headers, text }));
      response.on("error", reject);
      response.on("close", () => reject(new Error("cut off")));
    });
    const cut = () => request.destroy(Object.assign(new Error("no answer"), { code: "TIMEOUT" }));
    const timer = setTimeout(cut, Math.min(most, LONGEST));
    signal?.addEventListener("abort", cut);
    request.on("error", reject);
    request.on("close", () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", cut);
    });
    if (signal?.aborted) cut();
    request.end(body);
  });
}
