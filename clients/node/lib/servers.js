"use strict";

/** The servers of a client: which one is asked, and which of its answers are facts. */

const { randomUUID } = require("node:crypto");
const { onAbort } = require("./abort.js");
const { FINAL, Unavailable } = require("./errors.js");
const { Access } = require("./files.js");
const { send, newAgent, dropIdle, after } = require("./http.js");
const { parseURL } = require("./options.js");
const { Slots } = require("./slots.js");

const PATIENCE = 1000; // ms for a connection, and for a sign of life, where there is another server
const SILENCE = 250; // ms without an answer after which a server is asked for a sign of life
const AGAIN = 5000; // ms after which it is asked again
const FACTS = new Set(["held", "lost", "invalid", "unsupported", "denied", "unsent"]);
const NO_ANSWER = new Set(["unknown", "unsent", "other"]);

/** Returns how long one request may take, beside the time that it waits for the lock. */
const timeout = (ttl) => Math.min(ttl / 3, 5000);

class Servers {
  #servers;
  #at = 0; // the server in use
  #backend; // the name of the first one seen
  #failures = 0; // since the last answer
  #access;

  constructor(urls, { connections, ...access }) {
    this.#servers = [urls].flat().map((text) => {
      const server = parseURL(text);
      return { ...server, agent: newAgent(server.secure, connections) };
    });
    if (this.#servers.length === 0) throw new TypeError("Locks wants the URL of a server");
    this.#access = new Access(access);
    const quick = Math.max(1, Math.floor(connections / 4));
    this.quick = new Slots(quick);
    this.waits = new Slots(connections - quick);
  }

  get count() { return this.#servers.length; }

  /**
   * Sends one call to the server in use. It returns the kind of the answer, and the answer: a fact, or unknown, unsent (nothing was
   * taken) or other (another backend). After these the next server is in use.
   */
  async call(call, body, { most, signal, background, line }) {
    const at = this.#at;
    let facts = false;
    const options = {
      method: "POST", path: `/v1/${call}`, body: JSON.stringify(body), most, signal, background,
      line: line && ((renewed) => (facts = line(renewed) || facts)),
    };
    let [kind, answer] = await this.#exchange(this.#servers[at], options);
    if (line && kind === "ok" && !facts) kind = "unknown"; // the server works, and its backend does not
    this.#judged(at, kind, signal);
    return [kind, answer];
  }

  /** Asks until there is an answer, and returns it. */
  async ask(path) {
    for (let n = 1; ; n++) {
      const at = this.#at;
      const [kind, answer] = await this.quick.use(() => this.#exchange(this.#servers[at], { method: "GET", path, most: 5000 }));
      this.#judged(at, kind);
      if (kind === "ok") return answer;
      if (kind in FINAL) throw new FINAL[kind](answer.detail);
      if (n >= 2 * this.count) throw new Unavailable(answer.detail);
    }
  }

  /** Releases until there is an answer, for a few tries. It returns what became of it. */
  async release(hold, until, { most, background }) {
    let unknown = false;
    let result;
    for (let n = 0; n < 2 + 2 * this.count; n++) {
      if (n > 0) await pause(n, until, { background });
      if (n > 0 && performance.now() >= until) break;
      let [kind, answer] = await this.quick.use(() => this.call("release", hold, { most, background }));
      if (kind === "lost" && unknown) kind = "ok"; // an earlier request has released it
      if (!NO_ANSWER.has(kind)) return [kind, answer];
      unknown ||= kind === "unknown";
      result = ["unknown", answer];
    }
    return result;
  }

  /** The next server is in use after one that gave no answer. */
  #judged(at, kind, signal) {
    if (!NO_ANSWER.has(kind)) this.#failures = 0;
    else if (!signal?.aborted) {
      this.#failures++;
      if (this.#at === at) this.#at = (at + 1) % this.count;
    }
  }

  /** How long a server may be without a sign of life: longer once all have been tried, since the network may be slow. */
  get #patience() {
    return this.count === 1 ? Infinity : PATIENCE * 2 ** Math.min(3, Math.floor(this.#failures / this.count));
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
      response = await send(server.secure, await this.#request(server, method, path, body, { token, id }), {
        body, most, connect: patience, signal, background,
        lines: (r) => (line && r.statusCode === 200 && this.#isOurs(r.headers, id) ? (text) => lineOf(text, line) : undefined),
        started: (cut) => (watch = patience < Infinity && this.#watch(server, patience, () => cut("no sign of life"))),
      });
      answer = response.status === 204 || line && response.status === 200 ? {} : JSON.parse(response.text);
    } catch (e) {
      if (!signal?.aborted) dropIdle(server.agent);
      const why = response ? `status ${response.status}, and no JSON` : reasonOf(e);
      return [e.unsent ? "unsent" : "unknown", { detail: `${server.shown}: ${why}`, sent: !e.unsent }];
    } finally {
      if (watch) watch.end();
    }
    if (response.headers["distlock-request"] !== id) { // a proxy's, or to another request
      return ["unknown", { detail: `${server.shown}: status ${response.status}, and not from a distlock server` }];
    }
    return this.#judge(server, response, answer !== null && typeof answer === "object" ? answer : {});
  }

  async #request(server, method, path, body, { token, id }) {
    const headers = { "Distlock-Request": id };
    if (body !== undefined) {
      headers["Content-Type"] = "application/json";
      headers["Content-Length"] = Buffer.byteLength(body);
    }
    if (token !== undefined) headers.Authorization = token;
    if (this.#backend !== undefined) headers["Distlock-Backend"] = this.#backend;
    const tls = server.secure ? await this.#access.tls() : {};
    return { ...tls, ...server.target, method, path: server.prefix + path, headers, agent: server.agent };
  }

  /** Asks a server that gives no answer for a sign of life on a connection of its own, now and then. It calls dead if there is none. */
  #watch(server, patience, dead) {
    let timer;
    const look = async () => {
      const alive = await this.#lives(server, patience);
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
      const options = await this.#request(server, "GET", "/v1", undefined, { token: await this.#access.token(), id: randomUUID() });
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
  const ssl = /:SSL routines:[^:]*:([^:]+)/.exec(message);
  return ssl ? `${code}: ${ssl[1]}` : (code ?? name);
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
