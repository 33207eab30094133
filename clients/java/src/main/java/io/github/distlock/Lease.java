package io.github.distlock;

import java.lang.ref.Cleaner;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * A lock that is held. It is renewed until it is released or lost. It is safe for threads.
 *
 * <p>A lease that is dropped without a release is released when the garbage collector notices it, and is reported as forgotten.
 */
public final class Lease implements AutoCloseable {
    private static final Cleaner CLEANER = Cleaner.create(r -> Background.thread("distlock-cleaner", r));

    /** What is left of a lease that is forgotten. */
    private static final class Share implements Runnable {
        final Hold hold;
        final AtomicBoolean ended = new AtomicBoolean();

        Share(Hold hold) {
            this.hold = hold;
        }

        @Override
        public void run() {
            if (ended.compareAndSet(false, true)) {
                hold.forgotten();
            }
        }
    }

    private final Share share;
    private final Cleaner.Cleanable cleanable;
    private final AtomicBoolean closed = new AtomicBoolean();

    /** Makes a lease of a hold that has counted it. */
    Lease(Hold hold) {
        share = new Share(hold);
        cleanable = CLEANER.register(this, share);
    }

    /**
     * Returns the lock's name.
     *
     * @return the name
     */
    public String name() {
        return share.hold.name;
    }

    /**
     * Returns a number that grows with each holder, for the storage to compare.
     *
     * @return the fence
     */
    public long fence() {
        return share.hold.fence;
    }

    /**
     * Returns a future that is completed when the lease is lost or forgotten, before another can have the lock. What depends on it runs
     * in a thread of its own, and must not use the lease, which could not be forgotten then.
     *
     * @return the same future each time
     */
    public CompletableFuture<Void> lost() {
        return share.hold.lost;
    }

    /**
     * Returns for how long the lease is trusted if no renewal succeeds.
     *
     * @return a time; zero once the lease has ended
     */
    public Duration remaining() {
        return share.ended.get() ? Duration.ZERO : Duration.ofNanos(share.hold.remaining());
    }

    /**
     * Returns if the lease is held. It compares the clock itself, and asks no server: call it before each step that needs the lock.
     *
     * @throws DistlockException.Lost if the lease is lost or released
     */
    public void check() {
        if (share.ended.get() || !share.hold.isHeld()) {
            throw share.hold.over();
        }
    }

    /**
     * Makes the lock live for a time from now, if that is longer than it would live without a renewal.
     *
     * @param ttl for how long
     * @throws DistlockException.Lost if the lease is lost or released
     * @throws DistlockException.Invalid if the server does not accept the time
     * @throws DistlockException.Unavailable if no server has confirmed it. The lease is held as before
     */
    public void extend(Duration ttl) {
        long life = Options.nanos(Options.positive("ttl", ttl));
        check();
        await(share.hold.extend(life));
    }

    /**
     * Releases the lock. Another call does nothing, or throws Lost again. An interrupt does not stop it.
     *
     * @throws DistlockException.Lost if the lock was lost before
     * @throws DistlockException.Unavailable if no server has confirmed it yet: it goes on until the TTL has ended the lock
     */
    public void release() {
        await(releaseAsync());
    }

    /**
     * Begins to release the lock. The lease has ended when it returns.
     *
     * @return what {@link #release()} does, when it is done
     */
    public CompletableFuture<Void> releaseAsync() {
        return end(false).thenApplyAsync(x -> x, Background.THREADS);
    }

    boolean isLost() {
        return share.hold.isLost();
    }

    /** Releases what its user never had. */
    CompletableFuture<Void> abandon() {
        return end(true);
    }

    private CompletableFuture<Void> end(boolean unused) {
        if (!share.ended.compareAndSet(false, true) && !share.hold.isLost()) {
            return CompletableFuture.completedFuture(null);
        }
        cleanable.clean(); // forgets about it
        return share.hold.release(unused);
    }

    /**
     * Releases the lock, as {@link #release()} does. A release without an answer is no error here: the work is done, and the TTL ends
     * the lock. It is the end of one {@code try} block: a second block over the same lease would run without the lock.
     *
     * @throws DistlockException.Lost if the lock was lost, or the lease was closed before
     */
    @Override
    public void close() {
        if (!closed.compareAndSet(false, true)) {
            throw new DistlockException.Lost("\"" + name() + "\" was released at the end of an earlier block; what came after it ran without the lock");
        }
        try {
            await(end(false));
        } catch (DistlockException.Lost e) {
            throw e;
        } catch (DistlockException e) {
            // the work is done
        }
    }

    /** Waits for a result, and throws its error as one of this thread's. */
    static <T> T await(CompletableFuture<T> future) {
        try {
            return Background.await(future);
        } catch (ExecutionException e) {
            throw here(e.getCause());
        }
    }

    /** Returns an error of the loop's thread with the stack of this thread. */
    static RuntimeException here(Throwable error) {
        if (error instanceof RuntimeException) {
            error.fillInStackTrace();
            return (RuntimeException) error;
        }
        return new IllegalStateException(error);
    }

    /** Returns the name and the fence. */
    @Override
    public String toString() {
        return "Lease[" + name() + ", fence " + Long.toUnsignedString(fence()) + "]";
    }
}
