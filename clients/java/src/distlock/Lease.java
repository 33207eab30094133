package distlock;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;

/** A lock that is held. It is renewed until it is released or lost. */
public final class Lease implements AutoCloseable {
    private enum State { HELD, RELEASED, LOST }

    // The timer's thread makes no call that may hang, so that the loss of a lease is noticed in time.
    private static final ScheduledThreadPoolExecutor TIMER =
            new ScheduledThreadPoolExecutor(1, daemons("distlock timer"));
    private static final ExecutorService WORK = Executors.newCachedThreadPool(daemons("distlock renewal"));

    static {
        TIMER.setRemoveOnCancelPolicy(true);
    }

    private final Locks locks;
    private final Locks.Hold hold;
    private final Options options;
    private final long fence;
    private final CompletableFuture<Void> lost = new CompletableFuture<>();

    // Guarded by this.
    private State state = State.HELD;
    private long deadline; // of System.nanoTime; only a renewal in time moves it
    private boolean gone; // the server said that it is lost
    private Future<?> watch;
    private Future<?> renewal;

    Lease(Locks locks, Locks.Hold hold, Options options, long deadline, long fence) {
        this.locks = locks;
        this.hold = hold;
        this.options = options;
        this.deadline = deadline;
        this.fence = fence;
        synchronized (this) {
            arm();
            schedule(left() + options.margin() - options.ttl().toNanos() / 3 * 2);
        }
    }

    /** Returns the lock's name. */
    public String name() {
        return hold.name();
    }

    /** Returns a number that grows with each holder, for the storage to compare. */
    public long fence() {
        return fence;
    }

    /**
     * Returns a future that is completed when the lease is lost, before another can have the lock. What
     * depends on it runs in a thread of its own.
     */
    public CompletableFuture<Void> lost() {
        return lost;
    }

    /** Returns for how long the lease is trusted if no renewal succeeds; zero once it has ended. */
    public synchronized Duration remaining() {
        return state == State.HELD ? Duration.ofNanos(Math.max(0, left())) : Duration.ZERO;
    }

    /** Throws Lost if the lease has ended. It compares the clock itself, in case no thread could run. */
    public synchronized void check() {
        if (!remaining().isZero()) {
            return;
        }
        lose();
        throw new DistlockException.Lost("\"" + name() + (state == State.LOST ? "\" is lost" : "\" was released"));
    }

    /**
     * Releases the lock. Throws Lost if it was lost before, Unavailable if no server has confirmed it: then
     * it ends with its TTL. Another call does nothing, or throws Lost again.
     */
    public void release() {
        boolean wasLost, mayLive;
        long until;
        synchronized (this) {
            if (remaining().isZero()) {
                lose();
            }
            if (state == State.RELEASED) {
                return;
            }
            wasLost = state == State.LOST;
            mayLive = !gone; // also if it is lost by the clock
            gone = true;
            until = wasLost ? System.nanoTime() : deadline;
            if (!wasLost) {
                finish(State.RELEASED);
            }
        }
        var answer = mayLive ? locks.release(hold, until, options.timeout()) : null;
        if (wasLost || answer.kind().equals("lost")) {
            throw new DistlockException.Lost("\"" + name() + "\" was lost before its release");
        }
        if (!answer.kind().equals("ok")) {
            throw new DistlockException.Unavailable(
                    "the release of \"" + name() + "\" was not confirmed: " + answer.detail());
        }
    }

    /** Releases the lock. Throws Lost if it was lost. A release without an answer is no error: the TTL ends the lock. */
    @Override
    public void close() {
        try {
            release();
        } catch (DistlockException.Lost e) {
            throw e;
        } catch (DistlockException e) {
            // the work is done
        }
    }

    /** Returns the name and the fence. */
    @Override
    public String toString() {
        return "Lease[" + name() + ", fence " + Long.toUnsignedString(fence) + "]";
    }

    private long left() {
        return deadline - System.nanoTime();
    }

    private void arm() {
        watch = TIMER.schedule(this::watch, Math.max(0, left()), TimeUnit.NANOSECONDS);
    }

    private synchronized void watch() {
        if (state != State.HELD) {
            return;
        }
        if (left() > 0) {
            arm();
        } else {
            lose();
        }
    }

    private void schedule(long after) {
        renewal = TIMER.schedule(() -> WORK.execute(this::renew), Math.max(0, after), TimeUnit.NANOSECONDS);
    }

    private void renew() {
        long start = System.nanoTime();
        String outcome;
        try {
            outcome = locks.renew(hold, options);
        } catch (InterruptedException | RuntimeException e) {
            outcome = "unknown";
        }
        long ttl = options.ttl().toNanos();
        synchronized (this) {
            if (state != State.HELD) {
                return;
            }
            gone = outcome.equals("lost");
            if (gone || left() <= 0) { // over, whatever the answer
                lose();
            } else if (outcome.equals("ok")) {
                deadline = Math.max(deadline - start, ttl - options.margin()) + start;
                schedule(start + ttl / 3 - System.nanoTime());
            } else {
                schedule(ttl / 30);
            }
        }
    }

    private void lose() {
        if (state == State.HELD) {
            finish(State.LOST);
            lost.completeAsync(() -> null, WORK);
        }
    }

    private void finish(State s) {
        state = s;
        watch.cancel(false);
        renewal.cancel(false);
    }

    private static ThreadFactory daemons(String name) {
        return r -> {
            var t = new Thread(r, name);
            t.setDaemon(true);
            return t;
        };
    }
}
