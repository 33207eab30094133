"use strict";

/** The servers of a client: which one is asked, and which of its answers are facts. */

const { randomUUID } = require("node:crypto");
const { onAbort } = require("./abort.js");
const { Calls } = require("./calls.js");
const { FINAL, Unavailable } = require("./errors.js");
const { Access } = require("./files.js");
const { send, newAgent, dropIdle, after } = require("./http.js");
const { parseURL } = require("./options.js");

const PATIENCE = 1000; // ms for a connection, and for a sign of life, where there is another server
const SILENCE = 250; // ms without an answer after which a server is asked for a sign of life
const AGAIN = 5000; // ms after which it is asked again
const VAIN = 300_000; // ms after which a connection of calls is asked for again where a proxy did not pass it
const LONG = 20_000; // characters of a call that is made as a request
const TLS_ONLY = /HTTPS (server|port)/; // what servers and proxies answer to a request without TLS
const GONE = "ECONNREFUSED"; // nobody listens: what was there has ended, and its calls with it
const SELDOM = 60_000; // ms between warnings
const FACTS = new Set(["held", "lost", "invalid", "unsupported", "denied", "unsent"]);
const LET_IN = new Set(["ok", "held", "lost"]);
const NO_ANSWER = new Set(["unknown", "unsent", "other"]);

/** Returns how long one request may take, beside the time that it waits for the lock. */
const timeout = (ttl) => Math.min(ttl / 3, 5000);

class Servers {
  worked = false; // a call for a lock was let in
  #servers;
  #at; // the server in use
  #backend; // the name of the first one seen
  #failures = 0; // since the last answer
  #warned = -Infinity; // when
  #access;
  #most; // waits at once as requests
  #waits = 0;

  constructor(urls, { connections, ...access }) {
    this.#servers = [urls].flat().map((text) => {
      const server = parseURL(text);
      const [agent, aside] = [connections, Infinity].map((most) => newAgent(server.secure, most));
      return { ...server, agent, aside, streams: [], again: 0, vain: 0 };
    });
    if (this.#servers.length === 0) throw new TypeError("Locks wants the URL of a server");
    this.#at = this.#servers[0];
    this.#access = new Access(access);
    this.#most = connections - Math.max(1, Math.floor(connections / 4));
  }

  get count() { return this.#servers.length; }

  /**
   * Sends one call to the server in use, or to another one. It returns the kind of the answer, and the answer: a fact, or unknown, unsent (nothing was
   * taken) or other (another backend). After these the next server is in use. answer.at is where an unknown call may yet arrive.
   */
  async call(call, body, options) {
    const { server = this.#at } = options;
    const [kind, answer] = (await this.#inStream(server, call, body, options)) ?? (await this.#asRequest(server, call, body, options));
    this.worked ||= LET_IN.has(kind);
    this.#judged(server, kind, options.signal);
    if (kind === "unknown" && answer.sent !== false) answer.at = server;
    return [kind, answer];
  }

  async #asRequest(server, call, body, { most, signal, background, line }) {
    let facts = false;
    const waits = body.wait_ms > 0;
    const crowded = waits && this.#waits >= this.#most; // it keeps no connection from others
    const text = JSON.stringify(crowded ? { ...body, wait_ms: 0 } : body);
    const options = {
      method: "POST", path: `/v1/${call}`, body: text, most, signal, background,
      line: line && ((renewed) => (facts = line(renewed) || facts)),
    };
    this.#waits += waits && !crowded;
    const [kind, answer] = await this.#exchange(server, options).finally(() => (this.#waits -= waits && !crowded));
    if (line && kind === "ok" && !facts) return ["unknown", answer]; // the server works, and its backend does not
    return [kind, crowded ? { ...answer, crowded } : answer];
  }

  /** Makes a call over a connection of calls. It returns nothing if it is to be made as a request. */
  #inStream(server, call, body, options) {
    if (call === "renew") return undefined; // has a line for each hold anyway
    const text = JSON.stringify(body);
    if (text.length > LONG) return undefined; // a server ends a connection over what is too long
    const stream = server.streams.find((s) => s.takes(call) && (s.isOpen || server.vain === 0)) ?? this.#newStream(server);
    return stream?.call(call, text, options, (kind, answer) => this.#read(server, stream, kind, answer));
  }

  /** Returns what a line says of its call, or nothing if a request may find more. */
  #read(server, stream, kind, answer) {
    if (kind === "ok") return [kind, answer];
    if (kind === "denied") { // there may be another token
      if (answer.status === 401) stream.retire();
      return undefined;
    }
    const detail = answer.title === undefined ? `${server.shown}: ${answer.detail}` : answer.detail ?? answer.title;
    return [FACTS.has(kind) ? kind : "unknown", { ...answer, detail, gone: answer.detail === GONE }];
  }

  /** Opens a connection of calls, unless it was tried a moment ago, or is under way. Until one has worked again, calls are made as requests. */
  #newStream(server) {
    const now = performance.now();
    if (now < server.again || (server.vain > 0 && server.streams.some((s) => !s.isOpen))) return undefined;
    const files = this.#access.files();
    const stream = new Calls(this.#upgrade(server), {
      alive: () => this.#alive(server),
      stale: async () => {
        const [then, now] = await Promise.all([files, this.#access.files()]);
        return now.some((file, i) => file !== then[i]);
      },
      ended: ({ connected, lines }) => {
        server.streams = server.streams.filter((s) => s !== stream);
        if (lines > 0) server.vain = 0;
        else if (connected) this.#refused(server); // a proxy may keep lines back
      },
    });
    server.streams.push(stream);
    return server.vain === 0 ? stream : undefined;
  }

  /** Asks a server for a connection of calls. It returns nothing where it gets none, which it asks for again after a while. */
  async #upgrade(server) {
    const id = randomUUID();
    const options = await this.#request(server, "GET", "/v1/calls", undefined, { token: await this.#access.token(), id });
    Object.assign(options.headers, { Connection: "Upgrade", Upgrade: "distlock-calls" });
    const limit = Math.min(this.#patience, 5000);
    const answer = await send(server.secure, options, { most: limit, connect: limit, upgraded: true }).catch((e) => {
      if (!e.unsent) this.#refused(server);
      throw new Error(reasonOf(e));
    });
    if (answer.status === 101 && this.#isOurs(answer.headers, id)) {
      this.#backend ??= answer.headers["distlock-backend"];
      return answer;
    }
    answer.socket?.destroy();
    this.#refused(server, answer.status >= 500 || [401, 403, 421, 429].includes(answer.status) ? AGAIN : VAIN);
    return undefined;
  }

  #refused(server, time = Math.min(AGAIN * 2 ** server.vain, VAIN)) {
    server.vain++;
    server.again = performance.now() + time;
  }

  /** Asks until there is an answer, and returns it. */
  async ask(path) {
    for (let n = 1; ; n++) {
      const server = this.#at;
      const [kind, answer] = await this.#exchange(server, { method: "GET", path, most: 5000 });
      this.#judged(server, kind);
      if (kind === "ok") return answer;
      if (kind in FINAL) throw new FINAL[kind](answer.detail);
      if (n >= 2 * this.count) throw new Unavailable(answer.detail);
    }
  }

  /**
   * Releases until there is an answer, or until an instant. It returns what became of it, or unknown after a few tries: the others do not keep the process
   * alive. late are the servers at which an attempt of this owner may yet arrive: they are to refuse it.
   */
  async release(hold, until, options) {
    const patience = performance.now() + options.most;
    const first = await this.#releaseAt(hold, options);
    if (!NO_ANSWER.has(first[0]) && first[0] !== "denied") return first;
    return new Promise((resolve) => void this.#releaseOn(hold, until, patience, options, first, resolve));
  }

  async #releaseOn(hold, until, patience, options, [kind, answer], tell) {
    let unknown = false;
    for (let n = 1; NO_ANSWER.has(kind) || kind === "denied"; n++) {
      unknown ||= answer.at !== undefined;
      if (n >= 2 + 2 * this.count || kind === "denied" || performance.now() >= patience) {
        tell(["unknown", answer]);
        options = { ...options, background: true };
      }
      if (performance.now() >= until) return tell(["unknown", answer]);
      await pause(n, until, options);
      [kind, answer] = await this.#releaseAt(hold, options);
    }
    tell([kind === "lost" && unknown ? "ok" : kind, answer]); // an earlier request may have released it
  }

  #releaseAt(hold, { late, ...options }) {
    if (late === undefined) return this.call("release", hold, options);
    const calls = [...new Set(late).add(this.#at)].map((server) => this.call("release", hold, { ...options, server }));
    const released = calls.map(async (call) => {
      const result = await call;
      return result[0] === "ok" ? result : Promise.reject(result);
    });
    const isLost = ([kind, { gone }]) => kind === "lost" || gone; // a process that is gone makes no late attempt
    return Promise.any(released).catch(({ errors }) => errors.find((e) => !isLost(e)) ?? errors.find(([kind]) => kind === "lost") ?? errors[0]);
  }

  /** The next server is in use after one that gave no answer. */
  #judged(server, kind, signal) {
    if (!NO_ANSWER.has(kind)) this.#failures = 0;
    else if (this.#at === server && !signal?.aborted) {
      this.#failures++;
      this.#at = this.#servers[(this.#servers.indexOf(server) + 1) % this.count];
    }
  }

  /** Warns, not too often, that somebody waits in vain. */
  warn(why) {
    const now = performance.now();
    if (now - this.#warned < SELDOM) return;
    this.#warned = now;
    process.emitWarning(`a wait for a lock has had no answer for 5 s, and goes on: ${why}`, "DistlockWarning");
  }

  /** How long a server may be without a sign of life: longer once all have been tried, since the network may be slow. */
  get #patience() {
    return this.count === 1 ? Infinity : PATIENCE * 2 ** Math.min(3, Math.floor(this.#failures / this.count));
  }

  /** Reports whether calls are to go on waiting for a server that is silent. There may be no other. */
  async #alive(server) {
    const patience = this.#patience;
    if (await this.#lives(server, Math.min(patience, 5000))) return true;
    if (patience === Infinity) this.warn(`${server.shown}: no sign of life`);
    return patience === Infinity;
  }

  async #exchange(server, options) {
    const token = await this.#access.token();
    const first = await this.#send(server, token, options);
    if (first[0] !== "denied") return first;
    const next = await this.#access.token(true);
    return next === token ? first : this.#send(server, next, options);
  }

  async #send(server, token, { method, path, body, most, signal, background, line }) {
    const id = randomUUID();
    const patience = this.#patience;
    let watch;
    let response;
    let answer;
    try {
      response = await send(server.secure, await this.#request(server, method, path, body, { token, id, aside: background }), {
        body, most, connect: patience, signal, background,
        lines: (r) => (line && r.statusCode === 200 && this.#isOurs(r.headers, id) ? (text) => lineOf(text, line) : undefined),
        started: (cut) => (watch = this.#watch(server, () => cut("no sign of life"))),
      });
      answer = response.status === 204 || line && response.status === 200 ? {} : JSON.parse(response.text);
    } catch (e) {
      if (!signal?.aborted) dropIdle(server);
      const why = response ? `status ${response.status}, and ${TLS_ONLY.test(response.text) ? "it speaks TLS: want https://" : "no JSON"}` : reasonOf(e);
      return [e.unsent ? "unsent" : "unknown", { detail: `${server.shown}: ${why}`, sent: !e.unsent, gone: e.code === GONE }];
    } finally {
      watch?.end();
    }
    if (response.headers["distlock-request"] !== id) { // a proxy's, or to another request
      return ["unknown", { detail: `${server.shown}: status ${response.status}, and not from a distlock server` }];
    }
    return this.#judge(server, response, answer !== null && typeof answer === "object" ? answer : {});
  }

  async #request(server, method, path, body, { token, id, aside }) {
    const headers = { "Distlock-Request": id };
    if (body !== undefined) {
      headers["Content-Type"] = "application/json";
      headers["Content-Length"] = Buffer.byteLength(body);
    }
    if (token !== undefined) headers.Authorization = token;
    if (this.#backend !== undefined) headers["Distlock-Backend"] = this.#backend;
    const tls = server.secure ? await this.#access.tls() : {};
    return { ...tls, ...server.target, method, path: server.prefix + path, headers, agent: aside ? server.aside : server.agent };
  }

  /** Asks a server that gives no answer for a sign of life on a connection of its own, now and then. It calls dead if there is none. */
  #watch(server, dead) {
    let timer;
    const look = async () => {
      const alive = await this.#alive(server);
      if (timer === undefined) return;
      if (alive) timer = after(AGAIN, look);
      else dead();
    };
    timer = after(SILENCE, look);
    return {
      end() {
        clearTimeout(timer);
        timer = undefined;
      },
    };
  }

  /** Reports whether a server answers anything. Requests that ask at once share one question. */
  #lives(server, patience) {
    server.asked ??= (async () => {
      const options = await this.#request(server, "GET", "/v1", undefined, { token: await this.#access.token(), id: randomUUID(), aside: true });
      return send(server.secure, options, { most: patience, connect: patience, background: true });
    })().then(() => true, () => false).finally(() => (server.asked = undefined));
    return server.asked;
  }

  #isOurs(headers, id) {
    const backend = headers["distlock-backend"];
    return headers["distlock-request"] === id && backend !== undefined && backend === (this.#backend ?? backend);
  }

  #judge(server, { status, headers }, answer) {
    answer = { detail: `${server.shown}: status ${status}`, ...answer };
    const backend = headers["distlock-backend"];
    if (status === 421 && answer.distlock !== undefined) return ["other", answer]; // not the server that is meant
    if (backend === undefined) { // the server doesn't know us
      return [status === 401 && answer.distlock === "denied" ? "denied" : "unknown", { detail: answer.detail }];
    }
    this.#backend ??= backend;
    if (backend !== this.#backend) {
      const detail = `${server.shown} is before another backend than the first server: ${backend}, not ${this.#backend}`;
      return ["other", { detail }];
    }
    if (status === 200 || status === 204) return ["ok", answer];
    return [FACTS.has(answer.distlock) ? answer.distlock : "unknown", answer];
  }
}

/** Returns why there is no answer. OpenSSL says it in the middle of its message. */
function reasonOf({ code, name, message }) {
  const ssl = /:SSL routines:[^:]*:([^:]+)/.exec(message)?.[1];
  if (ssl === "wrong version number") return `${code}: it speaks no TLS: want http://`;
  return ssl ? `${code}: ${ssl}` : (code ?? name);
}

/** Hands a line of an answer on, if it is one. */
function lineOf(text, line) {
  let renewed;
  try {
    renewed = JSON.parse(text);
  } catch {
    return;
  }
  if (renewed !== null && typeof renewed === "object") line(renewed);
}

/** Waits before the next try: longer after each failure, until an instant or the abort of a signal. */
function pause(failures, until, { signal, background }) {
  const time = Math.min(1000, 25 * 2 ** Math.min(failures, 10)) * (0.5 + Math.random() / 2);
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      forget();
      resolve();
    };
    const timer = setTimeout(end, Math.max(0, Math.min(time, until - performance.now())));
    if (background) timer.unref();
    const forget = onAbort(signal, end);
  });
}

module.exports = { Servers, pause, timeout };
