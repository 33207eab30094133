// node --test tests the client against a server that answers as each test says.

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";

import { Denied, Held, Invalid, Locks, Lost, Unavailable } from "./distlock.js";

const TOKEN = "secret-of-the-tests";
const drop = "drop"; // the connection
const hang = "hang"; // no answer

/**
 * Answers each call by the next of its answers, and by the last one for ever after. An answer is [status, body], drop,
 * hang, or a function that returns one of these.
 */
async function serve(t, answers, { backend = "fake", path: file, mixedUp = false } = {}) {
  answers = { release: [[204]], ...answers };
  const fake = { requests: [], answers };
  fake.calls = (call) => fake.requests.filter((r) => r.call === call).map((r) => r.body);
  const server = http.createServer(async (request, response) => {
    let text = "";
    for await (const part of request) text += part;
    const call = request.url.split("/").at(-1);
    fake.requests.push({ call, body: JSON.parse(text), headers: request.headers });
    const next = answers[call].length > 1 ? answers[call].shift() : answers[call][0];
    const answer = typeof next === "function" ? await next() : next;
    if (answer === hang) return;
    if (answer === drop) return request.socket.destroy();
    const [status, body] = answer;
    response.setHeader("Distlock-Request", mixedUp ? "of another" : request.headers["distlock-request"]);
    response.writeHead(status, backend === null ? {} : { "Distlock-Backend": backend });
    response.end(body === undefined ? "" : JSON.stringify(body));
  });
  await new Promise((resolve) => (file ? server.listen(file, resolve) : server.listen(0, "127.0.0.1", resolve)));
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  fake.url = file ? `http+unix://${file}` : `http://127.0.0.1:${server.address().port}`;
  return fake;
}

const grant = ({ ttl_ms = 30_000, fence = "7" } = {}) => [200, { fence, fences: "1", ttl_ms, waited_ms: 0 }];
const problem = (status, kind, more) => [status, { title: "?", status, detail: "so it is", distlock: kind, ...more }];
const HELD = problem(423, "held", { holders: [{ mode: "exclusive", fence: "6", meta: { program: "job\n", pid: "5", host: "h" } }] });
const RENEWED = [200, { index: 0, outcome: "ok" }];
const DEAD = "http://127.0.0.1:1";

const locksOf = (...servers) => new Locks(servers.map((s) => s.url ?? s), { token: TOKEN });

async function refused(error, server, options) {
  let caught;
  await assert.rejects(locksOf(server).lock("x", options), (e) => (caught = e) instanceof error);
  assert.equal(caught.name, error.name);
  for (const { owner } of server.calls("acquire")) assert.ok(![TOKEN, owner].some((s) => inspect(caught).includes(s)));
  return caught;
}

function oneOwner(server) {
  assert.equal(new Set([...server.calls("acquire"), ...server.calls("release")].map((b) => b.owner)).size, 1);
}

async function eventually(isTrue) {
  while (!isTrue()) await sleep(1);
}

test("takes and releases", async (t) => {
  const server = await serve(t, { acquire: [grant({ fence: "9007199254740993" })] });
  const locks = locksOf(server);
  const lease = await locks.with("x", { wait: 0 }, (l) => {
    assert.equal(l.fence, 9007199254740993n);
    assert.ok(l.remaining > 0 && l.remaining <= 29_000);
    l.check();
    return l;
  });
  assert.equal(lease.remaining, 0);
  assert.throws(() => lease.check(), Lost);
  assert.ok(!lease.signal.aborted);
  const [first, last] = server.requests;
  assert.deepEqual([first.call, last.call, first.headers.authorization], ["acquire", "release", `Bearer ${TOKEN}`]);
  assert.deepEqual([first.body.ttl_ms, first.body.wait_ms, first.body.mode, first.body.meta.pid], [30_000, 0, "exclusive", String(process.pid)]);
  assert.equal(last.headers["distlock-backend"], "fake");
  assert.ok(![TOKEN, first.body.owner].some((s) => inspect([lease, locks], { depth: 9, showHidden: true }).includes(s)));
  oneOwner(server);
});

test("a Unix socket", async (t) => {
  const folder = await mkdtemp(path.join(os.tmpdir(), "distlock-"));
  t.after(() => rm(folder, { recursive: true }));
  const server = await serve(t, { acquire: [grant()] }, { path: `${folder}/s` });
  await locksOf(server).with("x", {}, () => {});
  assert.equal(server.calls("release").length, 1);
});

test("a semaphore and a reader", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  await locksOf(server).with("x", { limit: 3 }, () => {});
  await locksOf(server).with("x", { mode: "read" }, () => {});
  const modes = [...server.calls("acquire"), ...server.calls("release")].map((b) => [b.mode, b.limit]);
  assert.deepEqual(modes, [["counted", 3], ["read", undefined], ["counted", undefined], ["read", undefined]]);
});

test("held", async (t) => {
  const server = await serve(t, { acquire: [HELD] });
  const error = await refused(Held, server, { wait: 0 });
  assert.equal(error.holders[0].fence, "6");
  assert.match(error.message, /job\? \(pid 5 on h\)/);
  assert.equal(server.calls("release").length, 0); // nothing was taken
});

test("a waiter that gives up leaves the queue", async (t) => {
  const server = await serve(t, { acquire: [HELD] });
  await refused(Held, server, { wait: 50 });
  assert.equal(server.calls("release").length, 1);
  oneOwner(server);
});

test("a waiter that is aborted leaves the queue", async (t) => {
  const server = await serve(t, { acquire: [hang] });
  const abort = new AbortController();
  const waits = locksOf(server).lock("x", { signal: abort.signal });
  await eventually(() => server.calls("acquire").length > 0);
  abort.abort(new Error("enough"));
  await assert.rejects(waits, /enough/);
  assert.equal(server.calls("release").length, 1);
  oneOwner(server);
});

test("waiting without end is many polls by one owner", async (t) => {
  const server = await serve(t, { acquire: [HELD, HELD, grant()] });
  await (await locksOf(server).lock("x")).release();
  assert.deepEqual(server.calls("acquire").map((b) => b.wait_ms), [20_000, 20_000, 20_000]);
  oneOwner(server);
});

test("an owner that was released makes no other attempt", async (t) => {
  const spent = problem(423, "held", { spent: true });
  let server = await serve(t, { acquire: [spent, spent, grant()] });
  await (await locksOf(server).lock("x")).release();
  const owners = server.calls("acquire").map((b) => b.owner);
  assert.equal(new Set(owners).size, 3);
  assert.deepEqual(server.calls("release").map((b) => b.owner), owners.slice(2));
  server = await serve(t, { acquire: [spent] });
  await refused(Held, server, { wait: 50 });
  assert.equal(server.calls("release").length, 0); // nothing was taken
});

test("an owner that was released perhaps is released again", async (t) => {
  for (const first of [[drop, problem(423, "held", { spent: true })], [problem(504, "unknown", { spent: true })]]) {
    const server = await serve(t, { acquire: [...first, grant()] });
    await (await locksOf(server).lock("x")).release();
    const owners = server.calls("acquire").map((b) => b.owner);
    assert.equal(new Set(owners).size, 2);
    assert.deepEqual(server.calls("release").map((b) => b.owner), [owners[0], owners.at(-1)]);
  }
});

test("final errors", async (t) => {
  for (const [status, kind, error] of [[400, "invalid", Invalid], [501, "unsupported", Invalid], [403, "denied", Denied]]) {
    await refused(error, await serve(t, { acquire: [problem(status, kind)] }));
  }
  await refused(Denied, await serve(t, { acquire: [problem(401, "denied")] }, { backend: null }));
});

test("an acquire without answer is repeated", async (t) => {
  const server = await serve(t, { acquire: [drop, grant()] });
  await (await locksOf(server).lock("x", { wait: 0 })).release();
  assert.equal(server.calls("acquire").length, 2);
  oneOwner(server);
});

test("giving up releases", async (t) => {
  const server = await serve(t, { acquire: [drop] });
  await refused(Unavailable, server, { wait: 0 });
  assert.equal(server.calls("release").length, 1);
  oneOwner(server);
});

test("what a proxy says is no fact", async (t) => {
  for (const answer of [grant(), problem(410, "lost"), problem(423, "held", { spent: true }), [404], [200, ["a list"]]]) {
    const server = await serve(t, { acquire: [answer] }, { backend: null });
    await refused(Unavailable, server, { wait: 0 });
    oneOwner(server);
  }
  for (const answer of [[410, {}], [423, { distlock: "odd" }], [200, { fence: "x" }], [200, "text"], [200, null]]) {
    await refused(Unavailable, await serve(t, { acquire: [answer] }), { wait: 0 });
  }
});

test("an answer to another request is no fact", async (t) => {
  for (const answer of [grant(), HELD, problem(503, "unsent"), problem(403, "denied")]) {
    await refused(Unavailable, await serve(t, { acquire: [answer] }, { mixedUp: true }), { wait: 0 });
  }
});

test("a grant that comes too late is not used", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 1 }), grant({ fence: "8" })] });
  await locksOf(server).with("x", {}, (lease) => assert.equal(lease.fence, 8n));
  oneOwner(server);
});

test("the next server", async (t) => {
  const draining = await serve(t, { acquire: [problem(503, "unsent")] });
  const good = await serve(t, { acquire: [grant()] });
  await locksOf(DEAD, draining, good).with("x", { wait: 0 }, () => {});
  assert.deepEqual([draining, good].map((s) => s.requests.map((r) => r.call)), [["acquire"], ["acquire", "release"]]);
  await assert.rejects(locksOf(DEAD).lock("x", { wait: 0 }), Unavailable);
});

test("another backend is an error", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  const other = await serve(t, { acquire: [grant()] }, { backend: "other" });
  const locks = locksOf(server, other);
  await locks.with("x", {}, () => {});
  server.answers.acquire = [problem(503, "unsent")];
  await assert.rejects(locks.lock("x"), (e) => e instanceof Unavailable && /another backend.*other, not fake/.test(e.message));
  await refused(Unavailable, await serve(t, { acquire: [problem(421, "unsent")] }, { backend: null }));
});

test("loss is noticed while a renewal hangs", async (t) => {
  let answer;
  const renew = () => new Promise((resolve) => (answer = () => resolve(RENEWED)));
  const server = await serve(t, { acquire: [grant({ ttl_ms: 300 })], renew: [renew] });
  const start = performance.now();
  const lease = await locksOf(server).lock("x", { ttl: 300 });
  await new Promise((resolve) => lease.signal.addEventListener("abort", resolve));
  assert.ok(performance.now() - start >= 270);
  assert.ok(lease.signal.reason instanceof Lost);
  assert.throws(() => lease.check(), Lost);
  await assert.rejects(lease.release(), Lost);
  await eventually(() => server.calls("release").length > 0); // the backend may have it for longer
  answer(); // too late
  await sleep(10);
  assert.equal(lease.remaining, 0);
  assert.throws(() => lease.check(), Lost);
});

test("loss is noticed before a renewal times out", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 1_500 }), grant({ ttl_ms: 11_000 })], renew: [hang] });
  const lease = await locksOf(server).lock("x", { ttl: 12_000 }); // is lost in 0.5 s; its renewal times out in 4 s
  const clock = await locksOf(server).lock("clock", { ttl: 12_000 }); // is renewed in 3 s
  if (!lease.signal.aborted) await new Promise((resolve) => lease.signal.addEventListener("abort", resolve));
  assert.deepEqual(server.calls("renew").map((b) => b.holds[0].name), ["x"]);
  await clock.release();
});

test("loss is noticed where no timer could run", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 300 })], renew: [RENEWED] });
  const lease = await locksOf(server).lock("x", { ttl: 300 });
  while (lease.remaining > 0);
  assert.throws(() => lease.check(), Lost);
  assert.ok(lease.signal.aborted);
});

// A lease of 60 s whose server grants 40 s is renewed at once.
test("a renewal that is answered too late revives nothing", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 1_500 })], renew: [() => sleep(700, RENEWED)] });
  const real = globalThis.setTimeout; // the timer of the deadline, in half a second, comes late
  t.mock.method(globalThis, "setTimeout", (f, ms, ...more) => real(f, ms > 0 && ms <= 500 ? 5_000 : ms, ...more));
  const lease = await locksOf(server).lock("x", { ttl: 12_000 });
  await eventually(() => server.calls("renew").length > 0);
  await sleep(800); // were that too short, the test would only see less
  assert.equal(lease.remaining, 0);
  assert.throws(() => lease.check(), Lost);
});

test("a stated loss", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 40_000 })], renew: [[200, { index: 0, outcome: "lost" }]] });
  const work = (lease) => new Promise((resolve) => lease.signal.addEventListener("abort", resolve));
  await assert.rejects(locksOf(server).with("x", { ttl: 60_000 }, work), Lost);
  assert.equal(server.calls("release").length, 0);
});

test("renewal", async (t) => {
  const renew = [drop, [410, {}], problem(410, "lost"), [200, { index: 0, outcome: "unknown" }], RENEWED];
  const server = await serve(t, { acquire: [grant({ ttl_ms: 8_100 })], renew }); // at once, for 12 s
  await locksOf(server).with("x", { ttl: 12_000 }, async (lease) => {
    await eventually(() => lease.signal.aborted || lease.remaining > 9_000); // with the margin, the grant's was 7.1 s
    lease.check();
    assert.ok(lease.remaining <= 11_000);
  });
  assert.equal(server.calls("release").length, 1);
});

test("renewal by the next server", async (t) => {
  for (const outcome of ["unknown", "unsent"]) {
    const bad = await serve(t, { acquire: [grant({ ttl_ms: 40_000 })], renew: [[200, { index: 0, outcome }]] });
    const good = await serve(t, { renew: [RENEWED] });
    await locksOf(bad, good).with("x", { ttl: 60_000 }, async (lease) => {
      await eventually(() => lease.signal.aborted || good.calls("renew").length > 0);
      lease.check();
    });
  }
});

test("trust counts from before the request", async (t) => {
  const late = (answer) => () => sleep(510, answer);
  const slow = await serve(t, { acquire: [late(grant({ ttl_ms: 8_100 }))], renew: [late(RENEWED)] });
  await locksOf(slow).with("x", { ttl: 12_000 }, async (lease) => { // is renewed at once
    assert.ok(lease.remaining <= 7_100 - 500);
    await eventually(() => lease.signal.aborted || lease.remaining > 8_000);
    lease.check();
    assert.ok(lease.remaining <= 11_000 - 500);
  });
});

test("trust counts from the end of the wait", async (t) => {
  const [status, body] = grant();
  const late = await serve(t, { acquire: [() => sleep(510, [status, { ...body, waited_ms: 400 }])] });
  const start = performance.now();
  await locksOf(late).with("x", {}, (lease) => {
    const left = lease.remaining;
    assert.ok(left <= 29_400 - 500);
    assert.ok(left + performance.now() - start >= 29_400);
  });
  // A wait that was longer than the whole call is not believed.
  const liar = await serve(t, { acquire: [[status, { ...body, waited_ms: 20_000 }]] });
  await locksOf(liar).with("x", {}, (lease) => assert.ok(lease.remaining <= 29_000));
});

test("a release without answer is repeated", async (t) => {
  const server = await serve(t, { acquire: [grant()], release: [drop, problem(503, "unknown"), problem(410, "lost")] });
  await (await locksOf(server).lock("x")).release(); // the first one has released it
  assert.equal(server.calls("release").length, 3);
});

test("a release that is never confirmed", async (t) => {
  const locks = locksOf(await serve(t, { acquire: [grant()], release: [drop] }));
  assert.equal(await locks.with("x", {}, () => "done"), "done");
  await assert.rejects((await locks.lock("x")).release(), Unavailable);
});

test("lost before the release", async (t) => {
  const locks = locksOf(await serve(t, { acquire: [grant()], release: [problem(410, "lost")] }));
  await assert.rejects(locks.with("x", {}, () => {}), Lost);
  await assert.rejects(locks.with("x", {}, () => Promise.reject(new Error("of the work"))), /of the work/);
});

test("wrong arguments", async () => {
  for (const url of ["redis://h", "http://user:hidden@h", "localhost:1", "http+unix://h/s", "unix:/s", "http://h?a=b", "no URL"]) {
    assert.throws(() => new Locks(url), (e) => e instanceof TypeError && !inspect(e).includes("hidden"));
  }
  for (const token of ["a\nb", "ü", ""]) assert.throws(() => new Locks("http://h", { token }), TypeError);
  assert.throws(() => new Locks([]), TypeError);
  await assert.rejects(new Locks("http://h").lock("x", { wait: -1 }), TypeError);
  for (const ttl of [0, -1, NaN, Infinity]) await assert.rejects(new Locks("http://h").lock("x", { ttl }), TypeError);
});
