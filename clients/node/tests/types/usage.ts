// Uses all of the types, and works: the tests compile it for import and for require, and run it on a server.

import { Denied, DistlockError, Held, Invalid, Locks, Lost, Unavailable } from "distlock";
import type { ElectOptions, Holder, Lease, Leases, LockEvent, LockOptions, LocksOptions, TryOptions, UsingOptions } from "distlock";

const events: LockEvent[] = [];
const client: LocksOptions = { meta: { job: "types" }, onEvent: (e) => events.push(e), connections: 8, tls: { servername: "locks" } };
const locks = new Locks([process.argv[2]!], client);

async function main(): Promise<void> {
  const options: LockOptions = { ttl: 20_000, wait: 5_000, signal: new AbortController().signal, mode: "write", minHold: 0, maxHold: 60_000, renew: true, meta: {}, onLost: (e: Lost) => e.message };
  const lease: Lease = await locks.lock("types", options);
  const fence: bigint = lease.fence;
  const signal: AbortSignal = lease.signal;
  const left: number = lease.remaining;
  lease.check();
  await lease.extend(30_000);
  const once: TryOptions = { ttl: 20_000 };
  const none: Lease | null = await locks.tryLock("types", once);
  const holder: Holder | null = await locks.holder("types");
  const busy: boolean = await locks.locked("types");
  const error: unknown = await locks.lock("types", { wait: 0 }).catch((e: unknown) => e);
  const holders: Holder[] = error instanceof Held ? error.holders : [];
  await lease.release();
  const all: Leases = await locks.lockAll(["b", "a"] as const, { limit: 3 });
  const names: string[] = all.leases.map((l) => l.name);
  await all.release();
  const reentrant: UsingOptions = { reentrant: true };
  const five: number = await locks.using("types", reentrant, async (l: Lease) => locks.using("types", reentrant, (same) => (same === l ? 5 : 0)));
  const two: number = await locks.using(["a", "b"], (ls) => ls.leases.length);
  const scoped: string = await (async () => {
    await using l = await locks.lock("types");
    return l.name;
  })();
  const end = new AbortController();
  const election: ElectOptions = { ttl: 20_000, signal: end.signal };
  const led: unknown = await locks.elect("types", (l: Lease, s: AbortSignal) => end.abort(l.fence > fence && !s.aborted), election).catch((e: unknown) => e);
  const free = !(await locks.locked("types"));
  const errors = [DistlockError, Invalid, Denied, Unavailable].every((c) => c.prototype instanceof Error);
  const right = fence > 0n && !signal.aborted && left > 0 && none === null && holder?.fence === fence && holder.meta.job === "types" && busy &&
    holders.length === 1 && names.join() === "a,b" && five === 5 && two === 2 && scoped === "types" && led === true && free && errors &&
    events.some((e) => e.kind === "taken" && e.seconds >= 0);
  console.log(right ? "right" : "wrong");
  // @ts-expect-error: a function is missing
  await locks.using("types", { wait: 0 }).catch(() => {});
  // @ts-expect-error: only using with one name says where a hold ends
  await locks.lock("types", { reentrant: true }).catch(() => {});
  // @ts-expect-error: there is no such option
  await locks.lock("types", { timeout: 5 }).catch(() => {});
}

void main();
