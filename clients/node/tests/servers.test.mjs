// Which server is asked, and what is believed.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { copyFile, mkdtemp, rm, writeFile } from "node:fs/promises";
import https from "node:https";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect, promisify } from "node:util";

import { Denied, Held, Invalid, Locks, Lost, Unavailable } from "../distlock.mjs";
import { DEAD, HELD, RENEWED, STREAMS, TOKEN, aborted, drop, eventually, grant, hang, locksOf, oneOwner, problem, refused, serve } from "./fake.mjs";

test("a Unix socket", async (t) => {
  const folder = await mkdtemp(path.join(os.tmpdir(), "distlock-"));
  t.after(() => rm(folder, { recursive: true }));
  const server = await serve(t, { acquire: [grant()] }, { path: `${folder}/s` });
  await locksOf(server).using("x", {}, () => {});
  assert.equal(server.calls("release").length, 1);
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

test("the next server", async (t) => {
  const draining = await serve(t, { acquire: [problem(503, "unsent")] });
  const good = await serve(t, { acquire: [grant()] });
  const resetting = await serve(t, { acquire: [drop] });
  await locksOf(DEAD, draining, resetting, good).using("x", { wait: 0 }, () => {});
  assert.deepEqual([draining, resetting, good].map((s) => s.requests.map((r) => r.call)), [["acquire"], ["acquire"], ["acquire", "release"]]);
  await assert.rejects(locksOf(DEAD).lock("x", { wait: 0 }), Unavailable);
});

test("another backend is an error", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  const other = await serve(t, { acquire: [grant()] }, { backend: "other" });
  const locks = locksOf(server, other);
  await locks.using("x", {}, () => {});
  server.answers.acquire = [problem(503, "unsent")];
  await assert.rejects(locks.lock("x"), (e) => e instanceof Unavailable && /another backend.*other, not fake/.test(e.message));
  await refused(Unavailable, await serve(t, { acquire: [problem(421, "unsent")] }, { backend: null }));
});

test("an answer that changes the protocol is none", async (t) => {
  const server = net.createServer((s) => s.on("error", () => {}).once("data", () => s.write("HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  await assert.rejects(locksOf(`http://127.0.0.1:${server.address().port}`).tryLock("x"), Unavailable);
});

/** Returns a server that accepts connections, and says nothing. */
async function mute(t) {
  const sockets = new Set();
  const server = net.createServer((s) => sockets.add(s));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.close();
    sockets.forEach((s) => s.destroy());
  });
  return { connections: sockets, url: `http://127.0.0.1:${server.address().port}`, tls: `https://127.0.0.1:${server.address().port}` };
}

test("a server that gives no answer costs a moment once", async (t) => {
  for (const wait of [0, 2_000, Infinity]) {
    const silent = await mute(t);
    const good = await serve(t, { acquire: [grant()] });
    const locks = locksOf(silent, good);
    const yardstick = locksOf(silent).tryLock("x"); // it waits for the whole of its time, twice
    const lease = await Promise.race([locks.lock("x", { wait }), yardstick.catch(() => assert.fail("it took as long as without another server"))]);
    assert.ok(silent.connections.size >= (STREAMS ? 1 : 2)); // without a connection of calls one is for the question whether it lives
    await lease.release();
    const before = silent.connections.size;
    await (await locks.lock("x", { wait })).release(); // the other server is remembered
    assert.equal(silent.connections.size, before);
    yardstick.catch(() => {});
    silent.connections.forEach((s) => s.destroy());
  }
});

test("a connection that is not made sends nothing", async (t) => {
  const silent = await mute(t);
  const good = await serve(t, { acquire: [HELD] });
  await assert.rejects(new Locks([silent.tls, good.url]).lock("x", { wait: 0 }), Held);
  assert.equal(good.calls("release").length, 0); // nothing was taken
});

test("a server that lives may be slow", async (t) => {
  let answer;
  const slow = await serve(t, { acquire: [() => new Promise((resolve) => (answer = () => resolve(grant())))] });
  const other = await serve(t, { acquire: [grant()] });
  const waits = locksOf(slow, other).lock("x");
  await eventually(() => slow.calls("look").length > 0);
  await sleep(50);
  answer();
  await (await waits).release();
  assert.equal(other.requests.length, 0);
});

test("a server that dies during a wait", async (t) => {
  const dying = await serve(t, { acquire: [hang], look: [[200, {}], hang] });
  const good = await serve(t, { acquire: [grant()] });
  await (await locksOf(dying, good).lock("x")).release(); // which would wait for 20 s
  assert.ok(dying.calls("look").length > 0);
  assert.equal(dying.calls("acquire").length, 1);
  assert.equal(good.calls("acquire")[0].owner, dying.calls("acquire")[0].owner);
});

test("connections are kept", async (t) => {
  const server = await serve(t, { acquire: [grant()] });
  const locks = locksOf(server);
  for (let i = 0; i < 20; i++) await (await locks.lock("x")).release();
  assert.equal(server.connections, 1);
});

test("a token file is read again", async (t) => {
  const folder = await folderOf(t);
  const file = path.join(folder, "token");
  await writeFile(file, "first\n");
  const acquire = () => (server.requests.at(-1).headers.authorization === "Bearer second" ? grant() : problem(401, "denied"));
  const server = await serve(t, { acquire: [acquire] });
  const locks = new Locks(server.url, { tokenFile: file });
  await assert.rejects(locks.lock("x"), Denied);
  await writeFile(file, "");
  await assert.rejects(locks.lock("x"), Denied); // half of a change is none
  await writeFile(file, "second\n");
  await (await locks.lock("x")).release();
  assert.ok(!inspect(locks, { depth: 9, showHidden: true }).includes("second"));
  assert.throws(() => new Locks(server.url, { tokenFile: folder }), /EISDIR/);
});

test("certificates are read again", async (t) => {
  const folder = await folderOf(t);
  const file = (name) => path.join(folder, name);
  const openssl = (...args) => promisify(execFile)(process.env.DISTLOCK_TEST_OPENSSL ?? "openssl", args, { cwd: folder });
  const sign = async (name, extension, ...more) => {
    await openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", `${name}.key`, "-out", `${name}.csr`,
      "-subj", `/CN=${name}`, "-addext", extension);
    await openssl("x509", "-req", "-in", `${name}.csr`, "-days", "2", "-copy_extensions", "copy", "-out", `${name}.crt`, ...more);
  };
  await sign("ca", "basicConstraints=critical,CA:TRUE", "-signkey", "ca.key");
  for (const name of ["server", "one", "two"]) await sign(name, "subjectAltName=IP:127.0.0.1", "-CA", "ca.crt", "-CAkey", "ca.key");
  const read = (name) => readFileSync(file(name));
  const tls = { ca: read("ca.crt"), cert: read("server.crt"), key: read("server.key"), requestCert: true };
  const server = await serve(t, { acquire: [grant()] }, { server: (f) => https.createServer(tls, f) });
  server.url = server.url.replace("http:", "https:");
  const use = (name) => Promise.all(["crt", "key"].map((part) => copyFile(file(`${name}.${part}`), file(`client.${part}`))));
  await use("one");
  const files = { certFile: file("client.crt"), keyFile: file("client.key"), caFile: file("ca.crt") };
  const locks = new Locks(server.url, files);
  const shown = () => server.requests.at(-1).socket.getPeerCertificate().subject.CN;
  await (await locks.lock("x")).release();
  assert.equal(shown(), "one");
  await copyFile(file("two.crt"), files.certFile); // half of a change
  await sleep(1_100);
  await (await locks.lock("x")).release();
  assert.equal(shown(), "one");
  const authority = read("ca.crt");
  for (const half of ["", authority.subarray(0, authority.length / 2)]) {
    await writeFile(files.caFile, half);
    await sleep(1_100);
    await (await locks.lock("x")).release();
    assert.throws(() => new Locks(server.url, files), /half of one/);
  }
  await writeFile(files.caFile, authority);
  await use("two");
  await eventually(async () => {
    await (await locks.lock("x")).release();
    return shown() === "two";
  });
  await assert.rejects(new Locks(server.url).lock("x", { wait: 0 }), Unavailable); // without the authority
  assert.throws(() => new Locks(server.url, { ...files, keyFile: file("one.key") }), /key values mismatch/);
});

async function folderOf(t) {
  const folder = await mkdtemp(path.join(os.tmpdir(), "distlock-"));
  t.after(() => rm(folder, { recursive: true }));
  return folder;
}
