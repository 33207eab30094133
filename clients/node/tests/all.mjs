// Runs all tests that are not long, each file beside the others, since they mostly wait: with calls as lines of one connection, and as requests.

import { readdirSync } from "node:fs";
import { once } from "node:events";
import { run } from "node:test";
import { tap } from "node:test/reporters";
import { fileURLToPath } from "node:url";

const folder = fileURLToPath(new URL(".", import.meta.url));
const files = readdirSync(folder).filter((f) => f.endsWith(".test.mjs")).map((f) => folder + f);
for (const calls of ["lines", "requests"]) {
  process.env.DISTLOCK_TEST_CALLS = calls;
  const tests = run({ files, concurrency: files.length }).on("test:fail", () => (process.exitCode = 1));
  const ended = once(tests, "end");
  tests.compose(tap).pipe(process.stdout, { end: false });
  await ended;
}
