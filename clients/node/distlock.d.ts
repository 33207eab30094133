/**
 * Locks of a distlock server, for Node 18 or later, without dependencies.
 *
 * ```ts
 * const locks = new Locks("http://localhost:7077");
 * await locks.using("report", { wait: 10_000 }, async (lease) => {
 *   await write(report, { fence: lease.fence, signal: lease.signal });
 * });
 * ```
 *
 * All times are in milliseconds.
 *
 * @packageDocumentation
 */

import type { ConnectionOptions } from "node:tls";

/** Options of a client. */
export interface LocksOptions {
  /** The access token. No error and no event shows it. */
  token?: string;

  /** A file with the access token. It is read again when it changes, and when a server refuses the token. */
  tokenFile?: string;

  /** Options of `node:tls` for `https`, such as `ca` and `servername`. */
  tls?: ConnectionOptions;

  /** A file with the client's certificate, in PEM. Such files are read again when they change. */
  certFile?: string;

  /** A file with the key of that certificate, in PEM. */
  keyFile?: string;

  /** A file with the authorities that sign the servers' certificates, in PEM. The default is the system's. */
  caFile?: string;

  /** What others see of the holder, beside `host`, `pid` and `program`. */
  meta?: Record<string, string>;

  /** Is called with what happens, for metrics. An error that it throws harms nothing. */
  onEvent?: (event: LockEvent) => unknown;

  /**
   * How many requests may be under way at once, and how many idle connections are kept; 64 by default. It matters only where a proxy does not let calls share
   * a connection: there three quarters are for calls that wait for a lock, and further waits ask about once a second. Renewals are not counted: they are joined.
   */
  connections?: number;
}

/** Something that happened to a lock, for metrics. */
export interface LockEvent {
  /**
   * - `taken`: a lock was taken; the time since it was asked for.
   * - `waited`: the lock was not free, and was waited for; the same time. `taken` or `failed` follows.
   * - `failed`: a lock was not taken: held by others, given up, refused, no server; the time since it was asked for.
   * - `released`: a lease was released; the time since the grant.
   * - `lost`: a lease was lost; the time since the grant.
   * - `forgotten`: a lease was garbage before it was released, and ended; the time since the grant.
   */
  kind: "taken" | "waited" | "failed" | "released" | "lost" | "forgotten";

  /** The name of the lock. */
  name: string;

  /** A time in seconds, see {@link LockEvent.kind}. */
  seconds: number;
}

/** Options of one try, see {@link Locks.tryLock}. */
export interface TryOptions {
  /** For how long the lock outlives a process that died: 100 to 3 600 000, or more for a lease that is not renewed. The default is 30 000. */
  ttl?: number;

  /** Ends the request, but not the lease. */
  signal?: AbortSignal;

  /** `exclusive` is a mutex and the default. `write` and `read` make a lock with many readers or one writer. */
  mode?: "exclusive" | "write" | "read";

  /** Makes a semaphore with so many permits. All users give the same limit. */
  limit?: number;

  /**
   * For how long the lock is kept at least, from the grant. A release before that returns at once, and the lock is released when the time is over.
   * It is kept as long if the process ends or dies.
   */
  minHold?: number;

  /** For how long the lock is held at most, from the grant: then the lease is lost. The lock is free a TTL later, if it is not released before. */
  maxHold?: number;

  /** `false` is a fixed lease: it ends with its TTL unless it is extended. */
  renew?: boolean;

  /** What others see of this holder, beside the client's. */
  meta?: Record<string, string>;

  /** Is called when the lease is lost. An error that it throws harms nothing. */
  onLost?: (error: Lost) => unknown;
}

/** Options of a lock, see {@link Locks.lock}. */
export interface LockOptions extends TryOptions {
  /** For how long to wait: `0` is one try. The default is for ever. A wait that has had no answer for 5 s emits a warning of the process, and goes on. */
  wait?: number;

  /** Ends the wait, but not the lease. An aborted wait leaves nothing at the server. */
  signal?: AbortSignal;
}

/** Options of work under one lock, see {@link Locks.using}. */
export interface UsingOptions extends LockOptions {
  /**
   * Gives work the lease that is there already if `using` is called, by whatever way, from work under this lock of this client. The default is `false`: it waits
   * for itself.
   */
  reentrant?: boolean;
}

/** Options of an election, see {@link Locks.elect}. */
export interface ElectOptions {
  /** For how long a leader that died is followed by none. The default is 30 000. */
  ttl?: number;

  /** Ends the campaign and the term. */
  signal?: AbortSignal;

  /** What others see of the leader, such as its address. */
  meta?: Record<string, string>;
}

/** One that holds a lock. What is not known is absent. Its JSON has the fence as a text. */
export interface Holder {
  /** How it holds; `counted` is a permit of a semaphore. */
  mode?: "exclusive" | "write" | "read" | "counted";

  /** The fence of its lease. */
  fence?: bigint;

  /** Since when it has held. */
  held?: number;

  /** How long it holds on if it is not renewed. */
  left?: number;

  /** As given by the holder. Ours have `host`, `pid` and `program`. */
  meta: Record<string, string>;
}

/**
 * A lock that is held. It is renewed every third of its TTL until it is released or lost. It is lost when the server says so, and when no renewal had an answer until
 * a margin (a tenth of the TTL, at most a second) before the end of the TTL: before another can have the lock.
 *
 * Keep the lease until its release: one that is garbage ends, and is reported as the event `forgotten`, the first one as a warning of the process too.
 */
export interface Lease {
  /** The name of the lock. */
  readonly name: string;

  /** A number that grows with each holder. Give it to the storage, which refuses smaller ones. */
  readonly fence: bigint;

  /** Returns the name and the fence, which is a text there: JSON has no BigInt. */
  toJSON(): { name: string; fence: string };

  /** Is aborted when the lease is lost, with a {@link Lost} as its reason. */
  readonly signal: AbortSignal;

  /** For how long the lease is trusted if no renewal succeeds; 0 once it has ended. */
  readonly remaining: number;

  /** Throws {@link Lost} if the lease has ended. It compares the clock itself: it is right also after code that blocked the event loop. */
  check(): void;

  /**
   * Makes the lease last for at least `ttl` from now, and be renewed by at least as much. It never shortens a lease.
   *
   * @throws {@link Lost}, {@link Invalid}, {@link Denied}, or {@link Unavailable}, after which the old end holds.
   */
  extend(ttl: number): Promise<void>;

  /**
   * Releases the lock. Further calls have the same outcome.
   *
   * @throws {@link Lost} if it was lost before, {@link Unavailable} if no server has confirmed it in a few tries. It is tried on, as long as the process lives and
   * the lease would have lived.
   */
  release(): Promise<void>;

  /** Releases at the end of an `await using`, where the runtime has that. It throws {@link Lost} only, also for a second `await using` of one lease. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** Several leases as one, in the order in which they were taken: that of the names' bytes. */
export interface Leases {
  /** The leases. */
  readonly leases: Lease[];

  /** Is aborted when any of the leases is lost. */
  readonly signal: AbortSignal;

  /** For how long all are trusted. */
  readonly remaining: number;

  /** Throws {@link Lost} if any has ended. */
  check(): void;

  /** Returns what {@link Lease.toJSON} does, for each. */
  toJSON(): Lease[];

  /** Extends all, see {@link Lease.extend}. */
  extend(ttl: number): Promise<void>;

  /** Releases all, even if some fail, see {@link Lease.release}. */
  release(): Promise<void>;

  /** Releases all at the end of an `await using`. */
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * The locks of a server, or of several servers before the same backend. One timer renews all leases of a client, so make one client for the process.
 * It needs no end: neither timer nor idle connections keep the process alive.
 */
export class Locks {
  /**
   * @param urls - One or several such as `http://host:7077`, `https://host` or `http+unix:///run/distlock.sock`. The next one is used, and
   * remembered, when one does not answer or drains.
   * @throws TypeError if an argument is wrong, and the error of the file system if a file can't be read.
   */
  constructor(urls: string | readonly string[], options?: LocksOptions);

  /**
   * Takes a lock, and waits for it in the order of the server's queue, which is fair.
   *
   * @throws {@link Held} once the wait is over; {@link Invalid}, {@link Denied}, {@link Unavailable}; the reason of the signal.
   */
  lock(name: string, options?: LockOptions): Promise<Lease>;

  /**
   * Takes a lock if it is free. It returns `null` if others hold it.
   *
   * @throws {@link Invalid}, {@link Denied}, {@link Unavailable}; the reason of the signal.
   */
  tryLock(name: string, options?: TryOptions): Promise<Lease | null>;

  /**
   * Takes several locks, or none. They are taken in the same order everywhere, so that no two callers block each other for ever. `wait` is for all of them.
   *
   * @throws what {@link Locks.lock} throws, and {@link Lost} if one was lost during the wait for the next.
   */
  lockAll(names: readonly string[], options?: LockOptions): Promise<Leases>;

  /**
   * Calls work with a lease, releases it afterwards, and returns what work returns. With a list of names it takes all of them.
   *
   * @throws what {@link Locks.lock} throws, what work throws, and {@link Lost} if the lock was lost before its end.
   */
  using<T>(name: string, options: UsingOptions, work: (lease: Lease) => T | PromiseLike<T>): Promise<T>;
  using<T>(name: string, work: (lease: Lease) => T | PromiseLike<T>): Promise<T>;
  using<T>(names: readonly string[], options: LockOptions, work: (leases: Leases) => T | PromiseLike<T>): Promise<T>;
  using<T>(names: readonly string[], work: (leases: Leases) => T | PromiseLike<T>): Promise<T>;

  /**
   * Campaigns until it is elected, calls lead, and campaigns again, until the signal is aborted. A leader whose lead returns is followed by the next candidate,
   * and stays away for 2 s.
   *
   * @param lead - Leads, for one term. Its second argument is aborted when the term is lost and when the election is to end: then lead must return soon.
   * @throws the reason of the signal; what lead throws during its term; {@link Invalid} and {@link Denied}.
   */
  elect(name: string, lead: (lease: Lease, signal: AbortSignal) => unknown, options?: ElectOptions): Promise<never>;

  /** Reports whether anybody holds the lock. It needs the right `see`. By the time that you know it may have changed. */
  locked(name: string): Promise<boolean>;

  /** Returns who holds the lock, the first one of several, or `null`. It needs the right `see`. */
  holder(name: string): Promise<Holder | null>;
}

/** The base of all errors here. None has the token or the owner of a hold. */
export class DistlockError extends Error {}

/** The wait is over, and others hold the lock. */
export class Held extends DistlockError {
  /** What is known of them. */
  readonly holders: Holder[];
}

/** The lock was lost: others may hold it now. */
export class Lost extends DistlockError {}

/** The server does not accept the request, or its backend can't do that. */
export class Invalid extends DistlockError {}

/** The token is missing, wrong, or has no right to this lock. A wait of a client that was let in before goes on until it is over: the right may be given back. */
export class Denied extends DistlockError {}

/** No server gave an answer in time. The lock is not used. If it was taken, it is released, or ends with its TTL. */
export class Unavailable extends DistlockError {}
