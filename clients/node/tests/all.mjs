// Runs all tests that are not long, each file beside the others: they mostly wait.

import { readdirSync } from "node:fs";
import { run } from "node:test";
import { tap } from "node:test/reporters";
import { fileURLToPath } from "node:url";

const folder = fileURLToPath(new URL(".", import.meta.url));
const files = readdirSync(folder).filter((f) => f.endsWith(".test.mjs")).map((f) => folder + f);
run({ files, concurrency: files.length }).on("test:fail", () => (process.exitCode = 1)).compose(tap).pipe(process.stdout);
