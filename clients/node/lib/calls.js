"use strict";

/** A connection of calls: each acquire and release is a line, and is answered by a line as soon as it is over. */

const { onAbort } = require("./abort.js");

const CALLS = 1024; // under way at once: a server takes no more
const ROOM = 64; // of these, for releases only
const STEP = 250; // ms between looks at the calls
const AGAIN = 5000; // ms after a sign of life in which no other is asked for
const FIRST = 2500; // ms after which a proxy is taken for one that keeps lines back
const IDLE = 20_000; // ms after which an unused connection ends: a firewall may have forgotten it
const LONGEST = 1 << 20; // characters of a line

class Calls {
  #calls = new Map(); // under way, by index
  #index = 1; // of the last call; the first is a question whether lines get through
  #left = new Set(); // indexes of those whose answers nobody waits for, and that the server may still be making
  #lines = 0; // that were read
  #fresh = []; // indexes of calls that are not sent yet
  #out = ""; // other lines to be sent
  #planned = false;
  #text = ""; // the beginning of a line
  #socket; // once the server has agreed
  #open = false; // it has answered the first line
  #foreground = 0; // calls that somebody waits for
  #used = performance.now();
  #begun; // when the server had agreed
  #lookAt = Infinity; // when a sign of life is missed
  #retired = false; // it gets no more calls
  #looks = 0;
  #on;
  #timer;

  /**
   * opening is a promise of a socket and the bytes after its head, or of nothing if calls are to be sent as requests. alive() is asked for a sign of life after
   * a silence, stale() whether another connection would show another token or certificate. ended({ connected, lines }) is called once it gets no more calls.
   */
  constructor(opening, on) {
    this.#on = on;
    this.#timer = setInterval(() => this.#look(), STEP).unref();
    opening.then((opened) => (opened ? this.#begin(opened) : this.#end({ alone: true })), (e) => this.#end({ detail: e.message }));
  }

  get isOpen() { return this.#open; }

  /** Reports whether it takes a call. */
  takes(call) {
    if (this.#calls.size === 0 && performance.now() - this.#used > IDLE) this.retire();
    return !this.#retired && this.#calls.size + this.#left.size < (call === "release" ? CALLS : CALLS - ROOM);
  }

  /** Makes a call, and returns what read makes of the kind of its answer, and the answer; nothing, if it was not made and is to be sent as a request. */
  call(call, text, { most, signal, background }, read) {
    return new Promise((resolve) => {
      const index = ++this.#index;
      this.#used = performance.now();
      const made = { resolve, read, line: `"${call}":${text}}\n`, until: this.#used + most, background, lines: -1, forget: undefined };
      this.#calls.set(index, made);
      if (signal) made.forget = onAbort(signal, () => this.#leave(index, "given up"));
      if (!background && this.#foreground++ === 0) this.#socket?.ref();
      this.#fresh.push(index);
      this.#plan();
    });
  }

  #begin({ socket, head }) {
    this.#socket = socket;
    if (head.length > 0) socket.unshift(head);
    socket.setNoDelay(true);
    socket.setKeepAlive(true, IDLE);
    socket.setTimeout(0);
    socket.setEncoding("utf8");
    socket.on("data", (part) => this.#read(part));
    socket.on("error", (e) => this.#end({ detail: e.code ?? e.name }));
    socket.on("close", () => this.#end({ detail: "the connection was closed" }));
    if (this.#foreground === 0) socket.unref();
    socket.write('{"index":1}\n');
    this.#begun = performance.now();
  }

  /** Lets the lines be sent that come together, in one write. */
  #plan() {
    if (this.#planned || !this.#open) return;
    this.#planned = true;
    process.nextTick(() => this.#send());
  }

  #send() {
    this.#planned = false;
    let text = "";
    for (const index of this.#fresh) {
      const call = this.#calls.get(index);
      if (call === undefined) continue; // it was given up
      text += `{"index":${index},${call.line}`;
      call.line = undefined;
      call.lines = this.#lines;
    }
    this.#fresh.length = 0;
    text += this.#out;
    this.#out = "";
    if (text === "" || !this.#socket.writable) return;
    this.#lookAt = Math.min(this.#lookAt, performance.now() + STEP);
    this.#socket.write(text);
  }

  #read(part) {
    const lines = (this.#text + part).split("\n");
    this.#text = lines.pop();
    if (this.#text.length > LONGEST || !lines.every((text) => this.#line(text))) this.#end({ detail: "the answer is malformed" });
    this.#lookAt = this.#calls.size > 0 ? performance.now() + AGAIN : Infinity;
  }

  /** Gives a call its answer. It reports whether the line is one. */
  #line(text) {
    let answer;
    try {
      answer = JSON.parse(text);
    } catch {
      return false;
    }
    const { index, outcome, grant, problem } = answer ?? {};
    const call = this.#calls.get(index);
    if (typeof outcome !== "string" || !(index <= this.#index) || call?.lines < 0) return false;
    this.#lines++;
    this.#left.delete(index);
    if (index === 0) this.retire(); // the server wants no more calls
    if (call) this.#over(index, call, outcome, (outcome === "ok" ? grant : problem) ?? {});
    if (this.#open) return true;
    this.#open = true;
    this.#plan();
    return true;
  }

  #over(index, call, kind, answer) {
    this.#calls.delete(index);
    call.forget?.();
    if (!call.background && --this.#foreground === 0) this.#socket?.unref();
    if (this.#retired && this.#calls.size === 0) this.#socket?.end();
    call.resolve(kind && call.read(kind, answer));
  }

  /** Ends the wait for an answer. */
  #leave(index, detail) {
    const call = this.#calls.get(index);
    if (call === undefined) return;
    const sent = call.lines >= 0;
    if (sent) {
      this.#left.add(index);
      this.#out += `{"index":${index},"leave":true}\n`;
      this.#plan();
    }
    this.#over(index, call, sent ? "unknown" : "unsent", { detail, sent });
  }

  #look() {
    const now = performance.now();
    for (const [index, call] of this.#calls) {
      if (now < call.until) continue;
      if (call.lines === this.#lines) this.retire(); // nothing at all came since it was sent
      this.#leave(index, "no answer in time");
    }
    if (this.#calls.size === 0 && now - this.#used > IDLE) this.retire();
    if (this.#socket && !this.#open && now - this.#begun > FIRST) this.#end({ alone: true });
    if (++this.#looks % 4 === 0) void this.#on.stale().then((stale) => stale && this.retire());
    if (now < this.#lookAt) return;
    this.#lookAt = now + AGAIN;
    void this.#on.alive().then((alive) => alive || this.#end({ detail: "no sign of life" }));
  }

  /** Lets it get no more calls. It ends with the last one. */
  retire() {
    if (this.#retired) return;
    this.#retired = true;
    this.#on.ended({ connected: this.#socket !== undefined, lines: this.#lines });
    if (this.#calls.size === 0) this.#socket?.end();
  }

  /** Ends it. What was not sent is made in another way, if there is one. */
  #end({ detail, alone = this.#socket !== undefined }) {
    clearInterval(this.#timer);
    this.#lookAt = Infinity;
    this.retire();
    this.#socket?.destroy();
    for (const [index, call] of this.#calls) {
      const sent = call.lines >= 0;
      this.#over(index, call, sent ? "unknown" : alone ? undefined : "unsent", { detail, sent });
    }
  }
}

module.exports = { Calls };
