// Servers and rights that are away for a while: waits and releases go on.

import assert from "node:assert/strict";
import dns from "node:dns";
import net from "node:net";
import { test } from "node:test";

import { Denied, Locks, Unavailable } from "../distlock.mjs";
import { DEAD, HELD, drop, eventually, grant, hang, locksOf, oneOwner, problem, serve, warning } from "./fake.mjs";

const away = { denied: problem(403, "denied"), stranger: problem(401, "denied"), crowded: problem(429, "unsent"), drained: problem(503, "unsent"), failed: problem(503, "unknown"), dropped: drop };

for (const [what, answer] of Object.entries(away)) {
  test(`a wait goes on: ${what}`, async (t) => {
    const server = await serve(t, { acquire: [grant(), answer, answer, answer, answer, answer, HELD, answer, answer, grant()] });
    const locks = locksOf(server);
    await (await locks.lock("first")).release();
    await (await locks.lock("x")).release();
    assert.equal(server.answers.acquire.length, 1);
  });

  test(`a release goes on, also after its caller has returned: ${what}`, async (t) => {
    const release = [...Array(8).fill(answer), [204]];
    const server = await serve(t, { acquire: [grant()], release });
    const locks = locksOf(server);
    await assert.rejects((await locks.lock("x")).release(), Unavailable);
    await eventually(() => server.answers.release.length === 1);
    const sent = new Set(server.calls("release").map((b) => b.owner));
    assert.equal(sent.size, 1);
  });
}

test("a right that was never there ends a wait, and one that is not given back ends it when it is over", async (t) => {
  const server = await serve(t, { acquire: [problem(403, "denied")] });
  await assert.rejects(locksOf(server).lock("x"), Denied);
  server.answers.acquire = [grant(), problem(403, "denied")];
  const locks = locksOf(server);
  await (await locks.lock("x")).release();
  await assert.rejects(locks.lock("x", { wait: 100 }), Denied);
  assert.equal(await locks.tryLock("x").catch((e) => e.name), "Denied");
});

test("a release that is given up for its caller ends with the TTL", async (t) => {
  const server = await serve(t, { acquire: [grant({ ttl_ms: 900 })], release: [problem(403, "denied")] });
  const start = performance.now();
  await assert.rejects((await locksOf(server).lock("x", { ttl: 900 })).release(), Unavailable);
  const count = () => server.calls("release").length;
  await eventually(() => performance.now() > start + 3_500);
  const ended = count();
  await new Promise((resolve) => setTimeout(resolve, 1_500));
  assert.equal(count(), ended);
});

// An attempt that was given up at one server may arrive after the release at another, and would take the lock for nobody.
test("a release goes to where an attempt had no answer", async (t) => {
  const release = [problem(410, "lost")];
  for (const given of [[HELD], [grant()]]) {
    const first = await serve(t, { acquire: [drop], release: [[204]] });
    const second = await serve(t, { acquire: given, release });
    const locks = locksOf(first, second);
    await locks.using("x", { wait: 0 }, () => {}).catch(() => {});
    await eventually(() => first.calls("release").length > 0);
    assert.equal(first.calls("release")[0].owner, first.calls("acquire")[0].owner);
  }
});

test("a wait for a server that is not there says so", async (t) => {
  const silent = net.createServer(() => {});
  await new Promise((resolve) => silent.listen(0, "127.0.0.1", resolve));
  t.after(() => silent.close());
  for (const url of [DEAD, `http://127.0.0.1:${silent.address().port}`]) {
    const abort = new AbortController();
    const warned = warning(/no answer for 5 s, and goes on: http:\/\/127\.0\.0\.1/);
    const wait = new Locks(url).lock("x", { signal: abort.signal }).catch(() => {});
    assert.equal((await warned).name, "DistlockWarning");
    abort.abort();
    await wait;
  }
});

test("a name with two addresses, of which the first has no server", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  net.setDefaultAutoSelectFamily?.(false); // as in Node 18
  const { lookup } = dns;
  const addresses = [{ address: "::1", family: 6 }, { address: "127.0.0.1", family: 4 }];
  t.mock.method(dns, "lookup", (name, options, call) => (name !== "two.test" ? lookup(name, options, call)
    : options.all ? call(null, addresses) : call(null, "::1", 6)));
  await (await new Locks(server.url.replace("127.0.0.1", "two.test")).lock("x", { wait: 0 })).release();
});
