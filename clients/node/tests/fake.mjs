// A server that answers as each test says.

import assert from "node:assert/strict";
import http from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";

import { Locks } from "../distlock.mjs";

export const TOKEN = "secret-of-the-tests";
export const drop = "drop"; // the connection
export const hang = "hang"; // no answer

/**
 * Answers each call by the next of its answers, and by the last one for ever after. An answer is [status, body], drop,
 * hang, or a function that returns one of these. Bodies of renewals are lines. A GET is the call look.
 */
export async function serve(t, answers, { backend = "fake", path: file, mixedUp = false, server: make = http.createServer } = {}) {
  answers = { release: [[204]], look: [[200, {}]], ...answers };
  const fake = { requests: [], answers, connections: 0 };
  fake.calls = (call) => fake.requests.filter((r) => r.call === call).map((r) => r.body);
  const server = make(async (request, response) => {
    let text = "";
    for await (const part of request) text += part;
    const call = request.method === "GET" ? "look" : request.url.split("/").at(-1);
    const body = text && JSON.parse(text);
    fake.requests.push({ call, body, headers: request.headers, url: request.url, socket: request.socket });
    const next = answers[call].length > 1 ? answers[call].shift() : answers[call][0];
    let answer = next;
    while (typeof answer === "function") answer = await answer(body);
    if (answer === hang) return;
    if (answer === drop) return request.socket.destroy();
    const [status, ...bodies] = answer;
    response.setHeader("Distlock-Request", mixedUp ? "of another" : request.headers["distlock-request"]);
    response.writeHead(status, backend === null ? {} : { "Distlock-Backend": backend });
    response.end(bodies.map((b) => JSON.stringify(b)).join("\n"));
  });
  server.on("connection", () => fake.connections++);
  await new Promise((resolve) => (file ? server.listen(file, resolve) : server.listen(0, "127.0.0.1", resolve)));
  t.after(() => {
    server.close();
    server.closeAllConnections();
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

/** Resolves when a signal is aborted. */
export const aborted = (signal) => new Promise((resolve) => (signal.aborted ? resolve() : signal.addEventListener("abort", resolve)));
