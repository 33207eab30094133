import { Held, Locks } from "distlock";
const locks = new Locks("http://localhost:7077");
await locks.using("report", { wait: 10_000 }, async (lease) => {
  for (let part = 0; part < 3; part++) {
    lease.check(); // throws Lost in time
    console.log(`part ${part}, fence ${lease.fence}`);
  }
}).catch((e) => {
  if (!(e instanceof Held)) throw e;
  console.error(`not now: ${e.message}`);
});
