// A server that answers as each test says.

import assert from "node:assert/strict";
import http from "node:http";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";

import { Locks } from "../distlock.mjs";

export const TOKEN = "secret-of-the-tests";
export const drop = "drop"; // the connection
export const hang = "hang"; // no answer

/** Whether calls come as lines of a connection of calls, or as requests. The tests run with both. */
export const STREAMS = process.env.DISTLOCK_TEST_CALLS !== "requests";

/**
 * Answers each call by the next of its answers, and by the last one for ever after. An answer is [status, body], drop,
 * hang, or a function that returns one of these. Bodies of renewals are lines. A GET is the call look. left has the calls that were given up.
 */
export async function serve(t, answers, { backend = "fake", path: file, mixedUp = false, streams = STREAMS, server: make = http.createServer } = {}) {
  answers = { release: [[204]], look: [[200, {}]], ...answers };
  const fake = { requests: [], answers, connections: 0, upgrades: 0, left: 0, sockets: new Set() };
  fake.calls = (call) => fake.requests.filter((r) => r.call === call).map((r) => r.body);
  const answerTo = async (call, body, { headers, url, socket }) => {
    fake.requests.push({ call, body, headers, url, socket });
    let answer = answers[call].length > 1 ? answers[call].shift() : answers[call][0];
    while (typeof answer === "function") answer = await answer(body);
    if (answer === drop) socket.destroy();
    return answer;
  };
  const headersFor = (request) => ({
    "Distlock-Request": mixedUp ? "of another" : request.headers["distlock-request"], ...(backend === null ? {} : { "Distlock-Backend": backend }),
  });
  const server = make(async (request, response) => {
    let text = "";
    for await (const part of request) text += part;
    if (request.headers.upgrade) {
      fake.upgrades++;
      return response.writeHead(404).end();
    }
    const answer = await answerTo(request.method === "GET" ? "look" : request.url.split("/").at(-1), text && JSON.parse(text), request);
    if (answer === hang || answer === drop) return;
    const [status, ...bodies] = answer;
    response.writeHead(status, headersFor(request));
    response.end(bodies.map((b) => JSON.stringify(b)).join("\n"));
  });
  if (streams) {
    server.on("upgrade", (request, socket) => {
      fake.upgrades++;
      const heads = Object.entries(headersFor(request)).map(([k, v]) => `${k}: ${v}\r\n`).join("");
      socket.write(`HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: distlock-calls\r\n${heads}\r\n`);
      createInterface({ input: socket }).on("error", () => {}).on("line", async (line) => {
        const { index, leave, acquire, release } = JSON.parse(line);
        if (leave) {
          fake.left++;
          return socket.write(`${JSON.stringify({ index, outcome: "unknown", problem: { title: "?" } })}\n`);
        }
        if (!acquire && !release) return socket.write(`${JSON.stringify({ index, outcome: "invalid", problem: { title: "?" } })}\n`);
        const answer = await answerTo(acquire ? "acquire" : "release", acquire ?? release, { headers: request.headers, url: request.url, socket });
        if (answer === hang || answer === drop) return;
        const [status, body] = answer;
        const ok = status < 300;
        socket.write(`${JSON.stringify({ index, outcome: ok ? "ok" : body?.distlock ?? "unknown", [ok ? "grant" : "problem"]: body })}\n`);
      });
    });
  }
  server.on("connection", (socket) => {
    fake.connections++;
    fake.sockets.add(socket.on("error", () => {}));
  });
  await new Promise((resolve) => (file ? server.listen(file, resolve) : server.listen(0, "127.0.0.1", resolve)));
  t.after(() => {
    server.close();
    fake.sockets.forEach((s) => s.destroy());
  });
  fake.url = file ? `http+unix://${file}` : `http://127.0.0.1:${server.address().port}`;
  return fake;
}

export const grant = ({ ttl_ms = 30_000, fence = "7", waited_ms = 0 } = {}) => [200, { fence, fences: "1", ttl_ms, waited_ms }];
export const problem = (status, kind, more) => [status, { title: "?", status, detail: "so it is", distlock: kind, ...more }];
export const HELD = problem(423, "held", { holders: [{ mode: "exclusive", fence: "6", meta: { program: "job\n", pid: "5", host: "h" } }] });
export const RENEWED = ({ holds }) => [200, ...holds.map((_, index) => ({ index, outcome: "ok" }))];
export const DEAD = "http://127.0.0.1:1";

export const locksOf = (...servers) => new Locks(servers.map((s) => s.url ?? s), { token: TOKEN });

export async function refused(error, server, options) {
  let caught;
  await assert.rejects(locksOf(server).lock("x", options), (e) => (caught = e) instanceof error);
  assert.equal(caught.name, error.prototype.name);
  for (const { owner } of server.calls("acquire")) assert.ok(![TOKEN, owner].some((s) => inspect(caught).includes(s)));
  return caught;
}

export function oneOwner(server) {
  assert.equal(new Set([...server.calls("acquire"), ...server.calls("release")].map((b) => b.owner)).size, 1);
}

export async function eventually(isTrue) {
  while (!(await isTrue())) await sleep(3);
}

/** Resolves with the next warning whose text matches: a test may cause others, and late. */
export const warning = (pattern) => new Promise((resolve) => {
  process.on("warning", function heard(w) {
    if (!pattern.test(w.message)) return;
    process.off("warning", heard);
    resolve(w);
  });
});

/** Resolves when a signal is aborted. */
export const aborted = (signal) => new Promise((resolve) => (signal.aborted ? resolve() : signal.addEventListener("abort", resolve)));
