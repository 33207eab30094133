// Calls as lines of a connection: what is shared, and what becomes of it where a proxy does not pass it, or when it breaks.

import assert from "node:assert/strict";
import http from "node:http";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Held, Locks } from "../distlock.mjs";
import { HELD, drop, eventually, grant, hang, locksOf, oneOwner, problem, serve } from "./fake.mjs";
import { start } from "./server.mjs";

const lines = (server) => server.requests.filter((r) => r.url === "/v1/calls");
const takes = async (locks, n, name = "x") => Promise.all(Array.from({ length: n }, async (_, i) => (await locks.lock(`${name}${i}`)).release()));

test("calls share a connection", async (t) => {
  const server = await serve(t, { acquire: [grant()] }, { streams: true });
  const locks = locksOf(server);
  await takes(locks, 300);
  await takes(locks, 300);
  assert.deepEqual([server.upgrades, lines(server).length, server.requests.some((r) => r.url === "/v1/acquire")], [1, 1_200, false]);
});

test("where a proxy does not pass the connection, calls are requests, and it is asked once", async (t) => {
  const server = await serve(t, { acquire: [grant()] }, { streams: false });
  const locks = locksOf(server);
  for (let i = 0; i < 5; i++) await takes(locks, 20);
  assert.deepEqual([server.upgrades, server.calls("acquire").length, server.calls("release").length], [1, 100, 100]);
});

test("where a proxy passes it, and keeps lines back, calls are requests", async (t) => {
  const server = await serve(t, { acquire: [grant()] }, { streams: false });
  const makes = http.createServer((request, response) => {
    const { host, ...headers } = request.headers;
    const to = http.request(server.url + request.url, { method: request.method, headers }, (r) => r.pipe(response.writeHead(r.statusCode, r.headers)));
    request.pipe(to);
  });
  let upgrades = 0;
  makes.on("upgrade", (request, socket) => {
    upgrades++;
    socket.on("error", () => {}).resume();
    socket.write(`HTTP/1.1 101 OK\r\nConnection: Upgrade\r\nUpgrade: distlock-calls\r\nDistlock-Backend: fake\r\nDistlock-Request: ${request.headers["distlock-request"]}\r\n\r\n`);
  });
  await new Promise((resolve) => makes.listen(0, "127.0.0.1", resolve));
  t.after(() => makes.closeAllConnections() || makes.close());
  const locks = new Locks(`http://127.0.0.1:${makes.address().port}`);
  await takes(locks, 3);
  await takes(locks, 3);
  assert.deepEqual([upgrades, server.calls("acquire").length, server.calls("release").length], [1, 6, 6]);
});

test("calls whose connection breaks are repeated by the same owner", async (t) => {
  const server = await serve(t, { acquire: [grant(), hang, drop, grant()] }, { streams: true });
  const locks = locksOf(server);
  await (await locks.lock("first")).release();
  const waits = [locks.lock("x"), locks.lock("y")];
  for (const wait of waits) await (await wait).release();
  assert.equal(server.upgrades, 2);
  for (const name of ["x", "y"]) {
    const owners = server.requests.filter((r) => r.body.name === name).map((r) => r.body.owner);
    assert.ok(owners.length === 3 && new Set(owners).size === 1);
  }
});

test("what is no answer to a call ends the connection, and is no fact", async (t) => {
  const bad = ["no JSON", '{"index":99,"outcome":"ok","grant":{"fence":"5","ttl_ms":9000}}', '{"index":2}', "null", "[]"];
  const server = await serve(t, { acquire: [(_, socket) => (bad.length > 0 ? (server.requests.at(-1).socket.write(`${bad.shift()}\n`), hang) : grant())] }, { streams: true });
  await (await locksOf(server).lock("x")).release();
  assert.deepEqual([server.calls("acquire").length, server.upgrades], [6, 6]);
  oneOwner(server);
});

test("a server that wants no more calls gets them over no old connection", async (t) => {
  const server = await serve(t, { acquire: [grant()] }, { streams: true });
  const locks = locksOf(server);
  const lease = await locks.lock("x");
  const { socket } = server.requests[0];
  socket.write('{"index":0,"outcome":"unsent","problem":{"title":"it drains","status":503,"distlock":"unsent"}}\n');
  await new Promise((resolve) => socket.once("end", resolve)); // no call is under way
  await lease.release();
  assert.ok(server.requests[1].call === "release" && server.requests[1].socket !== socket);
});

test("a wait that is given up says so, and is released", async (t) => {
  const server = await serve(t, { acquire: [hang] }, { streams: true });
  const abort = new AbortController();
  const waits = locksOf(server).lock("x", { signal: abort.signal });
  await eventually(() => server.calls("acquire").length > 0);
  abort.abort(new Error("enough"));
  await assert.rejects(waits, /enough/);
  await eventually(() => server.left === 1 && server.calls("release").length > 0);
});

test("a refusal over the connection is asked about by a request, with another token", async (t) => {
  const server = await serve(t, { acquire: [grant(), problem(401, "denied"), grant()] }, { streams: true });
  const locks = locksOf(server);
  for (let i = 0; i < 2; i++) await (await locks.lock("x")).release();
  assert.deepEqual(server.calls("acquire").length, 3);
  assert.equal(server.requests.find((r) => r.url === "/v1/acquire")?.call, "acquire");
});

test("every wait is in the queue: more than a server takes over one connection", async (t) => {
  const server = await serve(t, { acquire: [({ name }) => (name === "free" ? grant() : hang)] }, { streams: true });
  const locks = locksOf(server);
  const abort = new AbortController();
  const waits = Array.from({ length: 2_000 }, (_, i) => locks.lock(`x${i}`, { signal: abort.signal }));
  await eventually(() => server.calls("acquire").length === 2_000);
  assert.ok(server.calls("acquire").every((b) => b.wait_ms > 19_000));
  assert.equal(server.upgrades, 3);
  await (await locks.lock("free")).release();
  abort.abort(new Error("enough"));
  for (const { reason } of await Promise.allSettled(waits)) assert.equal(reason, abort.signal.reason);
  await eventually(() => new Set(server.calls("release").map((b) => b.owner)).size === 2_001);
});

test("a lock that is stuck delays no wait for another, and turns are even", async (t) => {
  const { url } = await start(t);
  const locks = new Locks(url);
  const holder = new Locks(url);
  const stuck = await holder.lock("stuck");
  const abort = new AbortController();
  const waits = Promise.allSettled(Array.from({ length: 400 }, () => locks.lock("stuck", { signal: abort.signal })));
  const waiters = async (name) => (await (await fetch(`${url}/v1/locks/${name}`)).json()).waiters.length;
  await eventually(async () => (await waiters("stuck")) === 400);
  const other = await holder.lock("other");
  const next = locks.lock("other");
  await eventually(async () => (await waiters("other")) === 1);
  await other.release();
  await (await next).release();
  const turns = Array.from({ length: 100 }, () => 0);
  let end = false;
  await Promise.all(turns.map(async (_, i) => {
    while (!end) {
      await locks.using("turns", async () => turns[i]++);
      if (turns[i] === 10) end = true;
    }
  }));
  assert.ok(Math.min(...turns) >= 8, turns.join(" "));
  abort.abort();
  await waits;
  await stuck.release();
});

test("a request that waited for another one's connection, and has no answer, may have been done", async (t) => {
  let tries = 0;
  const server = await serve(t, { acquire: [({ name }) => (name === "slow" || tries++ > 0 ? sleep(50, HELD) : drop)] }, { streams: false });
  const locks = new Locks(server.url, { connections: 2 });
  await locks.tryLock("slow");
  const others = [1, 2].map(() => locks.tryLock("slow"));
  assert.equal(await locks.tryLock("x"), null);
  await Promise.all(others);
  assert.equal(server.calls("release")[0]?.owner, server.calls("acquire").find((b) => b.name === "x").owner);
});

test("waits that are too many for requests ask now and then", async (t) => {
  let free = false;
  const server = await serve(t, { acquire: [({ name, wait_ms }) => (free || name === "free" ? grant() : wait_ms > 0 ? hang : HELD)] }, { streams: false });
  const locks = new Locks(server.url, { connections: 8 });
  const abort = new AbortController();
  const stuck = Promise.allSettled(Array.from({ length: 6 }, (_, i) => locks.lock(`stuck ${i}`, { signal: abort.signal })));
  await eventually(() => server.calls("acquire").filter((b) => b.wait_ms > 0).length === 6);
  const wait = locks.lock("other");
  await (await locks.lock("free")).release();
  await assert.rejects(locks.lock("held", { wait: 20 }), Held);
  await eventually(() => server.calls("acquire").filter((b) => b.name === "other").length > 1);
  free = true;
  await (await wait).release();
  abort.abort();
  await stuck;
  assert.ok(server.connections <= 20, `${server.connections} connections`);
});
