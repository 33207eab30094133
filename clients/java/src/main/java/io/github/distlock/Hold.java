package io.github.distlock;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/** A hold on a lock, which one or more leases show to users. It is renewed until it is released or lost. */
final class Hold {
    static final long EPOCH = System.nanoTime(); // times are compared by their distance to it

    private enum State { HELD, RELEASED, LOST }

    final String name;
    final String owner;
    final Options options;
    final long fence;
    final CompletableFuture<Void> lost = new CompletableFuture<>();
    private final Engine engine;
    private final Set<Server> late; // where attempts to take it may yet arrive
    private final long since; // when it was granted, or a little earlier

    // Guarded by this.
    private State state = State.HELD;
    private long deadline; // of System.nanoTime; only a renewal in time moves it
    private boolean gone; // nothing is left that a release could end
    private boolean kept; // it is released, and renewed until its minimum hold is over
    private int leases = 1;
    private List<Object> key; // in Engine.reentrant; null if it is not there

    // The loop's.
    long next; // when it is renewed
    private Loop.Timer watch;

    Hold(Engine engine, String name, String owner, Options options, Set<Server> late, long granted, long life, long fence) {
        this.engine = engine;
        this.name = name;
        this.owner = owner;
        this.options = options;
        this.late = late;
        this.since = granted;
        this.deadline = granted + Math.min(life - Options.margin(options.ttl()), options.maxHold());
        this.fence = fence;
    }

    /** Begins to watch the deadline, and to renew. In the loop's thread. */
    void start() {
        watch();
        if (options.renew()) {
            long ttl = options.ttl();
            engine.renewals.add(this, System.nanoTime() + left() + Options.margin(ttl) - ttl / 3 * 2);
        }
    }

    /** Lets a thread that has the key take it again. */
    void keyed(List<Object> k) {
        synchronized (this) {
            if (state != State.HELD) {
                return;
            }
            key = k;
            engine.reentrant.put(k, this);
        }
    }

    /** Adds a lease. Returns false if the hold is over. */
    synchronized boolean share() {
        if (!isHeld()) {
            return false;
        }
        leases++;
        return true;
    }

    /** Reports whether it is held, and can be trusted. It compares the clock itself, in case no thread could run. */
    synchronized boolean isHeld() {
        if (state == State.HELD && left() <= 0) {
            lose();
        }
        return state == State.HELD;
    }

    synchronized boolean isLost() {
        return state == State.LOST;
    }

    /** Returns for how long it is trusted if no renewal succeeds, in ns. */
    synchronized long remaining() {
        return isHeld() ? Math.max(0, left()) : 0;
    }

    private synchronized long left() {
        return deadline - System.nanoTime();
    }

    /** Returns the body that renews it. */
    Map<String, Object> renewal(long ttl) {
        var body = Engine.body(name, owner, options.mode());
        body.put("ttl_ms", Options.millis(ttl));
        if (fence > 0) {
            body.put("fence", Long.toString(fence));
        }
        return body;
    }

    /** Takes over what became of a renewal. In the loop's thread. */
    void renewed(String outcome, long start) {
        long now = System.nanoTime(), ttl = options.ttl(), again = now + ttl / 30;
        synchronized (this) {
            if (state != State.HELD && !kept) {
                return;
            }
            if (outcome.equals("lost")) {
                gone = true;
                kept = false;
            }
            if (!kept && (gone || left() <= 0)) { // over, whatever the answer
                lose();
                return;
            }
            if (outcome.equals("ok")) {
                prolong(start, ttl);
                again = start + ttl / 3;
            }
        }
        engine.renewals.add(this, again);
    }

    private void prolong(long start, long ttl) {
        deadline = Math.min(Math.max(deadline - start, ttl - Options.margin(ttl)), since + options.maxHold() - start) + start;
    }

    /** Renews it for a TTL of its own. */
    CompletableFuture<Void> extend(long ttl) {
        var done = new CompletableFuture<Void>();
        engine.loop.execute(() -> engine.renewals.once(this, ttl, 2 + 2 * engine.api.servers.size(), (outcome, start, detail) -> {
            synchronized (this) {
                if (outcome.equals("lost") && state == State.HELD) {
                    gone = true;
                    lose();
                }
                if (isHeld() && outcome.equals("ok")) {
                    prolong(start, ttl);
                }
            }
            if (!isHeld()) {
                done.completeExceptionally(over());
            } else if (outcome.equals("ok")) {
                done.complete(null);
            } else {
                done.completeExceptionally(outcome.equals("invalid") ? new DistlockException.Invalid(detail)
                        : new DistlockException.Unavailable("\"" + name + "\" was not extended: " + detail));
            }
        }));
        return done;
    }

    DistlockException.Lost over() {
        String why = System.nanoTime() - since < options.maxHold() ? "\" is lost" : "\" is lost: it was held for its maxHold";
        return new DistlockException.Lost("\"" + name + (isLost() ? why : "\" was released"));
    }

    private void watch() {
        long left;
        synchronized (this) {
            if (!isHeld()) {
                return;
            }
            left = left();
        }
        watch = engine.loop.after(left, this::watch);
    }

    private void lose() {
        if (state == State.HELD) {
            state = State.LOST;
            engine.report(Event.Kind.LOST, name, System.nanoTime() - since);
            tellLoss();
            ended();
        }
    }

    private void tellLoss() {
        Runnable tell = () -> {
            lost.complete(null);
            if (options.onLost() != null) {
                Background.guarded(options.onLost(), "onLost");
            }
        };
        try {
            Background.THREADS.execute(tell);
        } catch (RuntimeException | OutOfMemoryError e) { // no thread: better here than never
            tell.run();
        }
    }

    /** Ends what goes on for a hold. */
    private void ended() {
        if (key != null) {
            engine.reentrant.remove(key, this);
        }
        engine.loop.execute(() -> {
            if (watch != null) {
                watch.cancel();
            }
            synchronized (this) {
                if (kept) {
                    return;
                }
            }
            engine.renewals.remove(this);
        });
    }

    /** Ends a lease of it whose user dropped it. */
    void forgotten() {
        synchronized (this) {
            if (!isHeld()) {
                return;
            }
            engine.report(Event.Kind.FORGOTTEN, name, System.nanoTime() - since);
            if (leases == 1) {
                tellLoss();
            }
        }
        release(false);
        Background.warn("distlock: the lease of \"" + name + "\" was dropped without a release; it is released now", null);
    }

    /**
     * Ends a lease of it, and releases it after the last one. The result is Lost if it was lost before, Unavailable if no server has
     * confirmed the release. What was not used needs no minimum hold.
     */
    CompletableFuture<Void> release(boolean unused) {
        boolean wasLost, mayLive;
        long until, keep = unused ? 0 : since + options.minHold() - System.nanoTime();
        synchronized (this) {
            isHeld(); // notices a loss
            if (state == State.RELEASED || state == State.HELD && --leases > 0) {
                return CompletableFuture.completedFuture(null);
            }
            wasLost = state == State.LOST;
            mayLive = !gone; // also if it is lost by the clock
            gone = true;
            until = wasLost ? System.nanoTime() + options.ttl() : deadline; // the server may have it for as long
            if (!wasLost) {
                state = State.RELEASED;
                kept = keep > 0 && options.renew();
                ended();
            }
        }
        var done = new CompletableFuture<Void>();
        if (!mayLive) {
            done.completeExceptionally(lostBefore());
        } else if (keep > 0 && !wasLost) {
            engine.loop.execute(() -> keep(done));
        } else {
            engine.loop.execute(() -> release(until, a -> {
                if (wasLost || a.is("lost")) {
                    wasLost();
                    done.completeExceptionally(lostBefore());
                } else if (!a.is("ok")) {
                    done.completeExceptionally(new DistlockException.Unavailable(
                            "the release of \"" + name + "\" was not confirmed: " + a.detail()));
                } else {
                    done.complete(null);
                }
            }));
        }
        return done;
    }

    private synchronized void wasLost() {
        state = State.LOST;
    }

    private DistlockException.Lost lostBefore() {
        return new DistlockException.Lost("\"" + name + "\" was lost before its release");
    }

    private void release(long until, Consumer<Answer> done) {
        boolean old = System.nanoTime() - since > options.life() + Engine.LATE;
        engine.release(Engine.body(name, owner, options.mode()), old ? Set.of() : late, until, until, options.timeout(), a -> {
            if (!isLost()) {
                engine.report(a.is("lost") ? Event.Kind.LOST : Event.Kind.RELEASED, name, System.nanoTime() - since);
            }
            done.accept(a);
        });
    }

    /** Keeps the lock until its minimum hold is over, also if this process ends before, and releases it then. In the loop's thread. */
    private void keep(CompletableFuture<Void> done) {
        long now = System.nanoTime(), end = since + options.minHold();
        engine.loop.after(end - now, () -> {
            finishKeeping();
            release(end + options.ttl(), a -> { });
        });
        if (left() + Options.margin(options.ttl()) >= end - System.nanoTime()) { // the server keeps it
            finishKeeping();
            done.complete(null);
            return;
        }
        engine.renewals.once(this, end - now, 4, (outcome, start, detail) -> {
            if (outcome.equals("ok")) {
                finishKeeping();
                done.complete(null);
            } else if (outcome.equals("lost")) {
                finishKeeping();
                done.completeExceptionally(lostBefore());
            } else {
                done.completeExceptionally(new DistlockException.Unavailable("if this process ends, \"" + name
                        + "\" may be free before its minimum hold is over: " + detail));
            }
        });
    }

    private void finishKeeping() {
        synchronized (this) {
            kept = false;
        }
        engine.renewals.remove(this);
    }
}
