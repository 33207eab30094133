package io.github.distlock;

import java.lang.ref.WeakReference;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.Lock;

/**
 * The locks of a distlock server, or of several servers before the same backend. It is safe for threads, virtual ones too. One daemon
 * thread does all that goes on for it; it ends when there is nothing to do, so a client needs no end.
 *
 * <pre>{@code
 * static final Locks LOCKS = Locks.of("http://localhost:7077");
 *
 * try (var lease = LOCKS.lock("report", Options.defaults().wait(Duration.ofSeconds(10)))) {
 *     write(report, lease.fence());
 * }
 * }</pre>
 *
 * <p>All errors are {@link DistlockException}s.
 */
public final class Locks {
    private static final long READ = TimeUnit.SECONDS.toNanos(5); // for which a call that reads may last

    private final Engine engine;

    Locks(Engine engine) {
        this.engine = engine;
    }

    /**
     * Returns a client of servers that want no token.
     *
     * @param urls {@code http://host:port}, {@code https://host} or {@code http+unix:///path/to.sock}; the next one is used when one does
     *     not answer or drains
     * @return the client
     */
    public static Locks of(String... urls) {
        return builder().url(urls).build();
    }

    /**
     * Returns a builder of a client.
     *
     * @return the builder
     */
    public static LocksBuilder builder() {
        return new LocksBuilder();
    }

    /**
     * Takes a lock, and waits for it without end.
     *
     * @param name the lock's name
     * @return the lease, to be closed
     * @throws InterruptedException if the thread is interrupted while it waits. Nothing is left held
     */
    public Lease lock(String name) throws InterruptedException {
        return lock(name, Options.defaults());
    }

    /**
     * Takes a lock.
     *
     * @param name the lock's name
     * @param options how it is taken
     * @return the lease, to be closed
     * @throws DistlockException.Held if the wait is over
     * @throws DistlockException.Invalid if the server does not accept the request
     * @throws DistlockException.Denied if the token has no right to the lock
     * @throws DistlockException.Unavailable if no server answers until the wait is over
     * @throws InterruptedException if the thread is interrupted while it waits. Nothing is left held
     */
    public Lease lock(String name, Options options) throws InterruptedException {
        return lock(name, options, List.of());
    }

    /** Takes a lock, and gives up if one of the leases is lost. */
    private Lease lock(String name, Options o, List<Lease> before) throws InterruptedException {
        check(name);
        Objects.requireNonNull(o, "options").check();
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        List<Object> key = o.reentrant() ? List.of(Thread.currentThread(), name) : null;
        Hold mine = key == null ? null : engine.reentrant.get(key);
        if (mine != null && mine.share()) {
            return again(mine, o);
        }
        var acquisition = new Acquisition(engine, name, o, key);
        for (Lease l : before) {
            endWith(l, acquisition.result, name);
        }
        try {
            return acquisition.result.get();
        } catch (ExecutionException e) {
            awaitEnd(acquisition.over, o.timeout());
            throw Lease.here(e.getCause());
        } catch (InterruptedException e) {
            CompletableFuture<?> end = acquisition.over;
            if (!acquisition.result.cancel(false) && !acquisition.result.isCompletedExceptionally()) {
                end = acquisition.result.join().abandon(); // the lock came at the same time
            }
            awaitEnd(end, o.timeout());
            throw e;
        }
    }

    /** What a user gets who waits in the background. Who completes it, or what depends on it, wants the lock no more. */
    private static final class Taking<T> extends CompletableFuture<T> {
        private final CompletableFuture<Lease> wait;

        Taking(CompletableFuture<Lease> wait) {
            this.wait = wait;
        }

        @Override
        public <U> CompletableFuture<U> newIncompleteFuture() {
            return new Taking<>(wait);
        }

        @Override
        public boolean cancel(boolean mayInterrupt) {
            return ended(super.cancel(mayInterrupt));
        }

        @Override
        public boolean complete(T value) {
            return ended(super.complete(value));
        }

        @Override
        public boolean completeExceptionally(Throwable error) {
            return ended(super.completeExceptionally(error));
        }

        private boolean ended(boolean now) {
            return now && (wait.cancel(false) || now); // does nothing once the lock is taken
        }
    }

    /** Ends a wait if a lease is lost. The lease and what is waited for can be forgotten all the same. */
    private static void endWith(Lease l, CompletableFuture<Lease> wait, String name) {
        var weak = new WeakReference<>(wait);
        String before = l.name();
        l.lost().thenRun(() -> {
            var f = weak.get();
            if (f != null) {
                f.completeExceptionally(new DistlockException.Lost("\"" + before + "\" was lost while waiting for \"" + name + "\""));
            }
        });
    }

    /** Lets a thread that was interrupted see that nothing is left, unless that takes long, or it is interrupted again. */
    private static void awaitEnd(CompletableFuture<?> end, long most) {
        try {
            end.get(most, TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt(); // it goes on in the background
        } catch (ExecutionException | TimeoutException e) {
            // it goes on in the background
        }
    }

    private Lease again(Hold mine, Options o) {
        var lease = new Lease(mine);
        if (!mine.options.mode().equals(o.mode()) || mine.options.limit() != o.limit()) {
            lease.abandon();
            throw new DistlockException.Invalid("this thread holds \"" + mine.name + "\" as " + mine.options.mode() + ", and not as " + o.mode());
        }
        return lease;
    }

    /**
     * Takes a lock in the background.
     *
     * @param name the lock's name
     * @param options how it is taken; not as a re-entrant lock, which belongs to a thread
     * @return the lease, or the error that {@link #lock(String, Options)} throws. Cancelling it, or a future that depends on it, ends
     *     the wait, and leaves nothing
     */
    public CompletableFuture<Lease> lockAsync(String name, Options options) {
        check(name);
        Objects.requireNonNull(options, "options").check();
        if (options.reentrant()) {
            throw new IllegalArgumentException("a re-entrant lock belongs to a thread: want lock or tryLock for it");
        }
        var acquisition = new Acquisition(engine, name, options, null);
        var result = new Taking<Lease>(acquisition.result);
        acquisition.result.whenCompleteAsync((lease, error) -> {
            if (lease == null) {
                result.completeExceptionally(error);
            } else if (!result.complete(lease)) {
                lease.abandon();
            }
        }, Background.THREADS);
        return result;
    }

    /**
     * Takes a lock if it is free.
     *
     * @param name the lock's name
     * @return the lease, to be closed; empty if others hold the lock
     * @throws InterruptedException if the thread is interrupted. Nothing is left held
     */
    public Optional<Lease> tryLock(String name) throws InterruptedException {
        return tryLock(name, Options.defaults());
    }

    /**
     * Takes a lock if it is free.
     *
     * @param name the lock's name
     * @param options how it is taken, but for their wait
     * @return the lease, to be closed; empty if others hold the lock
     * @throws InterruptedException if the thread is interrupted. Nothing is left held
     */
    public Optional<Lease> tryLock(String name, Options options) throws InterruptedException {
        try {
            return Optional.of(lock(name, Objects.requireNonNull(options, "options").wait(Duration.ZERO)));
        } catch (DistlockException.Held e) {
            return Optional.empty();
        }
    }

    /**
     * Works while it holds a lock.
     *
     * @param name the lock's name
     * @param options how it is taken
     * @param work what is done
     * @param <T> what the work returns
     * @param <E> what the work throws
     * @return what the work returns
     * @throws E if the work fails
     * @throws DistlockException.Lost if the lock was lost during the work
     * @throws InterruptedException if the thread is interrupted while it waits
     */
    public <T, E extends Exception> T using(String name, Options options, Work<T, E> work) throws E, InterruptedException {
        Objects.requireNonNull(work, "work");
        try (Lease lease = lock(name, options)) {
            return work.with(lease);
        }
    }

    /**
     * Takes several locks: all or none. They are taken in an order that is the same everywhere, so two programs never wait for each
     * other.
     *
     * @param names the locks' names, in any order, each once
     * @param options how each is taken; the wait is for all of them together
     * @return the leases, to be closed
     * @throws DistlockException.Lost if one is lost while the next one is waited for
     * @throws InterruptedException if the thread is interrupted while it waits. Nothing is left held
     */
    public Leases lockAll(Collection<String> names, Options options) throws InterruptedException {
        Objects.requireNonNull(options, "options");
        Objects.requireNonNull(names, "names").forEach(Locks::check);
        var sorted = new ArrayList<>(names);
        sorted.sort((a, b) -> Arrays.compareUnsigned(a.getBytes(StandardCharsets.UTF_8), b.getBytes(StandardCharsets.UTF_8)));
        for (int i = 1; i < sorted.size(); i++) {
            if (sorted.get(i).equals(sorted.get(i - 1))) {
                throw new IllegalArgumentException("\"" + sorted.get(i) + "\" is named twice");
            }
        }
        if (sorted.isEmpty()) {
            throw new IllegalArgumentException("want at least one name");
        }
        var taken = new ArrayList<Lease>();
        long begin = System.nanoTime(), wait = options.patience();
        try {
            for (String name : sorted) {
                long left = Math.max(0, wait - (System.nanoTime() - begin));
                taken.add(lock(name, wait == Long.MAX_VALUE ? options : options.wait(Duration.ofNanos(left)), taken));
            }
            return new Leases(taken);
        } catch (Throwable e) {
            var ends = new ArrayList<CompletableFuture<Void>>();
            for (int i = taken.size() - 1; i >= 0; i--) {
                ends.add(taken.get(i).abandon().exceptionally(x -> null));
            }
            ends.forEach(Lease::await);
            throw e;
        }
    }

    /**
     * Campaigns for a lock, leads while it holds it, and begins again, until the thread is interrupted. A term that was lost is
     * followed by another campaign at once. After a term that has ended by itself, other candidates have 2 s for their turn.
     *
     * <p>An interrupt of this thread ends the election, whoever sends it: if a loss shall interrupt the work, as in
     * {@code lease.lost().thenRun(worker::interrupt)}, do the work in a thread of its own.
     *
     * @param name the lock's name
     * @param options how it is taken; their wait bounds each campaign
     * @param lead what a leader does. It returns soon after {@link Lease#lost()}
     * @param <E> what it throws
     * @throws E if lead fails during its term. What it throws after a loss is logged, and ends nothing
     * @throws InterruptedException if the thread is interrupted. Nothing is left held
     */
    public <E extends Exception> void elect(String name, Options options, Work<?, E> lead) throws E, InterruptedException {
        Objects.requireNonNull(lead, "lead");
        for (;;) {
            boolean lost = false;
            Lease term = lock(name, options);
            try (term) {
                lead.with(term);
            } catch (InterruptedException e) {
                throw e;
            } catch (Exception e) {
                lost = term.isLost();
                if (!lost) {
                    throw e;
                }
                if (!(e instanceof DistlockException.Lost)) { // it may be a mistake, which nobody would see otherwise
                    Background.warn("distlock: lead of \"" + name + "\" failed after its lease was lost", e);
                }
            }
            if (!lost) {
                TimeUnit.SECONDS.sleep(2);
            }
        }
    }

    /**
     * Returns a lock for code that wants a {@link Lock}. The thread that locks it unlocks it; unlock throws {@link DistlockException.Lost}
     * if it was lost, and {@link IllegalMonitorStateException} if the thread does not hold it. It has no conditions. A thread that holds it
     * waits for itself, unless the options make it re-entrant.
     *
     * @param name the lock's name
     * @param options how it is taken, but for their wait
     * @return the lock, which is not taken yet
     */
    public Lock asLock(String name, Options options) {
        check(name);
        Objects.requireNonNull(options, "options").check();
        return new NamedLock(this, name, options);
    }

    /**
     * Asks whether a lock is held, by whomever. It needs the right to see the lock.
     *
     * @param name the lock's name
     * @return whether it was held when the server answered
     * @throws InterruptedException if the thread is interrupted
     */
    public boolean locked(String name) throws InterruptedException {
        return holder(name).isPresent();
    }

    /**
     * Asks who holds a lock. It needs the right to see the lock.
     *
     * @param name the lock's name
     * @return the holder, or one of them; empty if the lock is free
     * @throws InterruptedException if the thread is interrupted
     */
    public Optional<Holder> holder(String name) throws InterruptedException {
        check(name);
        // Java leaves some signs as they are, and writes others as forms do.
        String path = "/v1/locks/" + URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20").replace(".", "%2E").replace("*", "%2A");
        var result = new CompletableFuture<Answer>();
        engine.loop.execute(() -> ask(path, 2 * engine.api.servers.size(), result));
        try {
            Answer a = result.get();
            a.failIfFinal();
            if (!a.is("ok") || !name.equals(a.body.get("name"))) {
                throw new DistlockException.Unavailable(a.detail());
            }
            return Holder.of(a.body).stream().findFirst();
        } catch (ExecutionException e) {
            throw Lease.here(e.getCause());
        }
    }

    private void ask(String path, int tries, CompletableFuture<Answer> result) {
        engine.api.send(new Call(Call.Sort.SHORT, path, READ, a -> {
            if (a.isAnswer() || tries <= 1) {
                result.complete(a);
            } else {
                engine.loop.after(Engine.pause(1, Long.MAX_VALUE), () -> ask(path, tries - 1, result));
            }
        }));
    }

    private static void check(String name) {
        if (Objects.requireNonNull(name, "name").isEmpty()) {
            throw new IllegalArgumentException("the name is empty: want the name of a lock");
        }
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(name)) {
            throw new IllegalArgumentException("the name has half a character: want text that UTF-8 can contain");
        }
    }
}
