"use strict";

/** One request, and its whole answer. */

const http = require("node:http");
const https = require("node:https");
const { onAbort } = require("./abort.js");

const MOST = 1 << 20; // characters of an answer, or of a line of one that has lines
const IDLE = 20_000; // ms after which an unused connection ends: a firewall may have forgotten it
const LONGEST = 2 ** 31 - 1; // ms of a timer

const ready = new WeakSet(); // sockets that are connected

/**
 * Sends a request, and returns its status, headers and text. Nothing takes longer than most, and no connection longer than
 * connect. An error has unsent if no byte of the request can have left.
 *
 * lines returns a function for the lines of an answer as they come, or nothing. background does not keep the process alive. An answer that
 * changes the protocol has the socket and the bytes after its head, if upgraded is true.
 */
function send(secure, options, { body = "", most, connect, signal, background, lines, started, upgraded }) {
  return new Promise((resolve, reject) => {
    let connected = false;
    let responded = false;
    const request = (secure ? https : http).request({ ...options, autoSelectFamily: true }); // Node 18 would try one address
    const cut = (code) => request.destroy(Object.assign(new Error("no answer"), { code }));
    const timer = after(most, () => cut("no answer in time"));
    let patience; // counts once there is room for the request
    const isConnected = () => {
      connected = true;
      clearTimeout(patience);
    };
    request.on("socket", (socket) => {
      if (background) socket.unref();
      if (request.reusedSocket || ready.has(socket)) return isConnected(); // of a request before this one
      patience = after(Math.min(connect, most), () => cut("no connection in time"));
      const event = secure ? "secureConnect" : "connect";
      const begin = () => isConnected(ready.add(socket));
      socket.once(event, begin);
      request.once("close", () => socket.off(event, begin));
    });
    request.on("response", (response) => {
      responded = true;
      read(response, lines?.(response), cut).then(resolve, reject);
    });
    if (upgraded) {
      request.on("upgrade", ({ statusCode: status, headers }, socket, head) => {
        responded = true;
        resolve({ status, headers, socket, head, text: "" });
      });
    }
    request.on("error", (e) => reject(Object.assign(e, { unsent: !connected })));
    request.on("close", () => {
      clearTimeout(timer);
      clearTimeout(patience);
      forget();
      // An answer that changes the protocol ends the connection, without an error.
      if (!responded) reject(Object.assign(new Error("no answer"), { code: "no answer of HTTP/1.1", unsent: !connected }));
    });
    started?.(cut);
    const forget = onAbort(signal, () => cut("given up"));
    request.end(body);
  });
}

function read(response, line, cut) {
  return new Promise((resolve, reject) => {
    let text = "";
    response.setEncoding("utf8");
    response.on("data", (part) => {
      text += part;
      if (line && part.includes("\n")) {
        const whole = text.split("\n");
        text = whole.pop();
        whole.forEach(line);
      }
      if (text.length > MOST) cut("too long an answer");
    });
    response.on("end", () => {
      if (line && text !== "" && response.complete) line(text);
      resolve({ status: response.statusCode, headers: response.headers, text });
    });
    response.on("error", reject);
    response.on("close", () => reject(Object.assign(new Error("cut off"), { code: "answer cut off" })));
  });
}

/** Sets a timer that does not keep the process alive: the connection of a request that somebody waits for does. */
const after = (ms, f) => setTimeout(f, Math.min(Math.max(ms, 0), LONGEST)).unref();

/** Returns connections to one server, at most so many. They are kept for the next request. */
function newAgent(secure, most) {
  return new (secure ? https : http).Agent({ keepAlive: true, maxSockets: most, timeout: IDLE });
}

/** Ends the connections that nobody uses: if one of a server is dead, all may be. */
function dropIdle({ agent, aside }) {
  for (const socket of [agent, aside].flatMap((a) => Object.values(a.freeSockets).flat())) socket.destroy();
}

module.exports = { send, newAgent, dropIdle, after };
