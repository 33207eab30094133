import { Held, Locks } from "./distlock.js";

const urls = process.argv.slice(2);
const locks = new Locks(urls.length ? urls : "http://localhost:7077");
try {
  await locks.with("report", { ttl: 30_000, wait: 10_000 }, async (lease) => {
    for (let part = 0; part < 3; part++) {
      lease.check(); // throws Lost in time
      console.log(`part ${part}, fence ${lease.fence}`);
    }
  });
} catch (e) {
  if (!(e instanceof Held)) throw e;
  console.error(`not now: ${e.message}`);
  process.exitCode = 1;
}
