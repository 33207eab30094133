// Starts real servers, and programs that hold locks, as child processes that end with the test.

import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

let built;

/** Returns the command distlock: DISTLOCK_COMMAND, or one that is built now. */
function command() {
  if (process.env.DISTLOCK_COMMAND) return process.env.DISTLOCK_COMMAND;
  if (built === undefined) {
    const folder = folderOf({ after: (f) => process.once("exit", f) });
    const { status, stderr } = spawnSync("go", ["build", "-o", folder, "."], { cwd: fileURLToPath(new URL("../../../cmd/distlock", import.meta.url)) });
    if (status !== 0) throw new Error(`go build: ${stderr}`);
    built = path.join(folder, "distlock");
  }
  return built;
}

/** Returns a folder that ends with the test. */
export function folderOf(t) {
  const folder = mkdtempSync(path.join(os.tmpdir(), "distlock-node-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** Starts a server of locks in a folder, or in its memory. Servers of one folder are before one backend. */
export async function start(t, folder, listen = "127.0.0.1:0") {
  const backend = folder ? `sqlite:${path.join(folder, "locks.db")}` : "mem:";
  const child = spawn(command(), ["serve", "--url", backend, "--listen", listen], { stdio: ["ignore", "pipe", "pipe"] });
  t.after(() => child.kill("SIGKILL"));
  child.stderr.resume();
  const [line] = await linesOf(child, 1);
  const addr = line.split(" ")[0];
  return { child, addr, url: `http://${addr}`, kill: (signal = "SIGKILL") => child.kill(signal) };
}

/** Starts a program with the client, and returns the child. What it prints are its lines. */
export function program(t, script, ...args) {
  const text = `import { Locks } from ${JSON.stringify(new URL("../distlock.mjs", import.meta.url))};\n${script}`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", text, ...args], { stdio: ["pipe", "pipe", "inherit"] });
  t.after(() => child.kill("SIGKILL"));
  child.lines = [];
  createInterface({ input: child.stdout }).on("line", (line) => child.lines.push(line));
  return child;
}

/** Returns the next lines of a child. */
export function linesOf(child, count) {
  return new Promise((resolve, reject) => {
    const lines = [];
    const input = createInterface({ input: child.stdout });
    input.on("line", (line) => lines.push(line) === count && resolve(lines));
    input.on("close", () => reject(new Error(`the child has ended after ${JSON.stringify(lines)}`)));
  });
}

/** Returns the URL of a host that is off: packets to it are dropped, since nobody accepts and its queue is full. */
export async function blackHole(t) {
  const script = 'const s = require("net").createServer().listen({ port: 0, host: "127.0.0.1", backlog: 1 }, () => console.log(s.address().port));';
  const child = spawn(process.execPath, ["-e", script], { stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => child.kill("SIGKILL"));
  const [port] = await linesOf(child, 1);
  child.kill("SIGSTOP");
  const sockets = Array.from({ length: 6 }, () => net.connect(port, "127.0.0.1").on("error", () => {}));
  t.after(() => sockets.forEach((s) => s.destroy()));
  await new Promise((resolve) => setTimeout(resolve, 100));
  return `http://127.0.0.1:${port}`;
}
