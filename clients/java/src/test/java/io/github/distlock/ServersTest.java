package io.github.distlock;

import static io.github.distlock.Check.eventually;
import static io.github.distlock.Check.expect;
import static io.github.distlock.Check.fails;
import static io.github.distlock.Check.that;
import static io.github.distlock.Servers.OPTIONS;
import static io.github.distlock.Servers.TRY;
import static io.github.distlock.Servers.free;
import static io.github.distlock.Servers.name;
import static io.github.distlock.Servers.server;
import static io.github.distlock.Servers.ttl;

import io.github.distlock.Servers.Odd;
import io.github.distlock.Servers.Off;
import io.github.distlock.Servers.Real;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/** Tests the client on real servers: java -cp … ServersTest COMMAND BACKEND [TEST…], with the path of distlock and the URL of a backend. */
final class ServersTest {
    /** A first host without an answer costs about a second, once. */
    static void hostsThatAreOff() throws Exception {
        try (var off = new Off(); var ends = new Odd(true); var hangs = new Odd(false)) {
            var dead = new Odd(false);
            dead.close();
            for (String first : List.of(off.url(), dead.url(), ends.url(), hangs.url())) {
                for (Duration wait : Arrays.asList(Duration.ZERO, Duration.ofSeconds(2), null)) {
                    double took = 9, then = 9;
                    for (int i = 0; i < 3 && (took >= 3 || then >= 0.9); i++) { // the best of three, on a busy machine
                        var locks = Locks.of(first, server.url());
                        took = Math.min(took, Servers.seconds(() -> locks.lock(name(), OPTIONS.wait(wait)).close()));
                        then = Math.min(then, Servers.seconds(() -> locks.lock(name(), OPTIONS.wait(wait)).close()));
                    }
                    System.out.printf("     wait %s: %.2f s, then %.2f s%n", wait, took, then);
                    that(took < 3 && then < 0.9);
                }
            }
            int before = hangs.connections.get();
            var locks = Locks.of(hangs.url(), server.url());
            for (int i = 0; i < 5; i++) {
                locks.lock(name(), OPTIONS).close();
            }
            that(hangs.connections.get() - before <= 3); // an acquire, a probe beside it, and the release of what may arrive late
        }
    }

    /** The wait of a server that stops goes on at another server. */
    static void serverThatStopsDuringAWait() throws Exception {
        var victim = new Real();
        var holder = Locks.of(server.url()).lock(name(), OPTIONS);
        var locks = Locks.of(victim.url(), server.url());
        free(locks, name()); // it knows that the server lives
        var waiter = locks.lockAsync(holder.name(), OPTIONS);
        eventually(() -> waiters(holder.name()) > 0);
        victim.signal("STOP");
        TimeUnit.SECONDS.sleep(1); // so that the stopped server does not see it
        holder.close();
        double took = Servers.seconds(() -> waiter.get().close());
        System.out.printf("     after %.2f s%n", took);
        that(took < 15); // without the probe it is 25
        victim.kill();
    }

    private static long waiters(String name) {
        var found = new CompletableFuture<Long>();
        try {
            var engineField = Locks.class.getDeclaredField("engine");
            engineField.setAccessible(true);
            var engine = (Engine) engineField.get(Locks.of(server.url()));
            engine.loop.execute(() -> engine.api.send(new Call(Call.Sort.SHORT, "/v1/locks/" + name.replace("/", "%2F"), 5_000_000_000L,
                    a -> found.complete(a.body.get("waiter_count") instanceof Long ? (Long) a.body.get("waiter_count") : 0))));
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
        return found.join();
    }

    /** A lease outlives the server that stops or is killed: the next one renews it. */
    static void serverThatEndsDuringALease() throws Exception {
        for (String signal : List.of("STOP", "KILL", "TERM")) {
            var victim = new Real();
            var locks = Locks.of(victim.url(), server.url());
            try (var lease = locks.lock(name(), ttl(15_000))) {
                victim.signal(signal);
                TimeUnit.SECONDS.sleep(16);
                lease.check();
                that(Locks.of(server.url()).tryLock(lease.name()).isEmpty());
            }
            victim.kill();
        }
    }

    /** Threads of several clients add to a number without a lock of their own, while a server is killed every second. */
    static void serversThatAreKilledEverySecond() throws Exception {
        var all = List.of(new Real(), new Real(), new Real());
        var urls = all.stream().map(Real::url).toArray(String[]::new);
        String name = name();
        long[] number = {0, 0}; // and the last fence
        var added = new AtomicInteger();
        var inside = new AtomicBoolean();
        var errors = new CopyOnWriteArrayList<Throwable>();
        var over = new AtomicBoolean();
        var threads = new ArrayList<Thread>();
        for (int i = 0; i < 6; i++) {
            var locks = Locks.of(urls);
            threads.add(new Thread(() -> {
                while (!over.get()) {
                    try (var lease = locks.lock(name, ttl(4_000).wait(Duration.ofSeconds(60)))) {
                        that(inside.compareAndSet(false, true));
                        that(lease.fence() > number[1]);
                        number[1] = lease.fence();
                        number[0]++;
                        added.incrementAndGet();
                        inside.set(false);
                    } catch (Throwable e) {
                        errors.add(e);
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        for (int i = 0; i < 12 || added.get() <= 20; i++) { // a slow machine has fewer turns a second
            TimeUnit.SECONDS.sleep(1);
            all.get(i % 3).restart();
        }
        over.set(true);
        for (Thread t : threads) {
            t.join();
        }
        errors.removeIf(e -> e instanceof DistlockException.Lost); // its server was killed after the release, say
        System.out.println("     " + added + " turns");
        expect(errors, List.of());
        expect(number[0], (long) added.get());
        all.forEach(Real::kill);
    }

    /** An interrupt at any moment leaves no lock, and no place in a queue. */
    static void interrupts() throws Exception {
        var locks = Locks.of(server.url());
        var random = new Random(1);
        int hit = 0;
        for (int i = 0; i < 200; i++) {
            String name = name();
            var me = Thread.currentThread();
            var go = new CountDownLatch(1);
            var other = new Thread(() -> {
                await(go);
                LockSupport.parkNanos(random.nextInt(500_000));
                me.interrupt();
            });
            other.start();
            go.countDown();
            try (var lease = locks.lock(name, TRY)) {
                lease.check();
            } catch (InterruptedException e) {
                hit++;
            }
            while (other.isAlive()) {
                try {
                    other.join();
                } catch (InterruptedException e) {
                    // that was it
                }
            }
            Thread.interrupted();
            free(locks, name);
        }
        System.out.println("     " + hit + " of 200");
        that(hit > 0);
    }

    private static void await(CountDownLatch go) {
        try {
            go.await();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Cancelling at any moment leaves no lock, and no place in a queue. */
    static void cancels() throws Exception {
        var locks = Locks.of(server.url());
        var random = new Random(2);
        var names = new ArrayList<String>();
        int hit = 0;
        for (int i = 0; i < 200; i++) {
            names.add(name());
            var f = locks.lockAsync(names.get(i), OPTIONS);
            TimeUnit.NANOSECONDS.sleep(random.nextInt(3_000_000));
            if (f.cancel(true)) {
                hit++;
            } else {
                f.get().close();
            }
        }
        System.out.println("     " + hit + " of 200");
        for (String name : names) {
            locks.lock(name, OPTIONS.wait(Duration.ofSeconds(10))).close(); // before a TTL is over
        }
        var holder = locks.lock(name(), OPTIONS);
        var waiter = locks.lockAsync(holder.name(), OPTIONS);
        eventually(() -> waiters(holder.name()) == 1);
        waiter.cancel(true);
        fails(CancellationException.class, waiter::get);
        eventually(() -> waiters(holder.name()) == 0);
        holder.close();
    }

    /** A thousand leases are renewed together, by one thread. */
    static void aThousandLeases() throws Exception {
        var locks = Locks.builder().url(server.url()).connections(40).build();
        long before = loops();
        var asked = new ArrayList<CompletableFuture<Lease>>();
        for (int i = 0; i < 1000; i++) {
            asked.add(locks.lockAsync(name(), ttl(60_000)));
        }
        var leases = new ArrayList<Lease>();
        for (var f : asked) {
            leases.add(f.get());
        }
        Servers.awaitRenewals(leases);
        that(loops() <= before + 1); // those of earlier tests end meanwhile
        leases.stream().map(Lease::releaseAsync).collect(java.util.stream.Collectors.toList()).forEach(CompletableFuture::join);
    }

    private static long loops() {
        return Thread.getAllStackTraces().keySet().stream().filter(t -> t.getName().matches("distlock-\\d+")).count();
    }

    /** A lease that is dropped ends, and is reported. */
    static void forgottenLeases() throws Exception {
        var events = new CopyOnWriteArrayList<Event>();
        var locks = Locks.builder().url(server.url()).onEvent(e -> {
            events.add(e);
            throw new IllegalStateException("an error in a callback");
        }).build();
        String name = name();
        var lost = new AtomicBoolean();
        drop(locks, name, lost);
        eventually(() -> {
            System.gc();
            return events.stream().anyMatch(e -> e.kind() == Event.Kind.FORGOTTEN) && lost.get();
        });
        locks.lock(name, OPTIONS.wait(Duration.ofSeconds(60))).close(); // long before its TTL is over
        // A request that takes long, as on a busy machine, is a wait; the next grant may be reported before the release.
        eventually(() -> events.stream().filter(e -> e.kind() == Event.Kind.RELEASED).count() == 2);
        expect(events.stream().map(Event::kind).filter(k -> k != Event.Kind.WAITED).limit(2).collect(java.util.stream.Collectors.toList()),
                List.of(Event.Kind.TAKEN, Event.Kind.FORGOTTEN));
    }

    private static void drop(Locks locks, String name, AtomicBoolean lost) throws Exception {
        locks.lock(name, ttl(600_000).onLost(() -> lost.set(true))).check();
    }

    /** Threads of any kind take turns; with one carrier, a virtual thread that blocks it would hold up all. */
    static void manyThreads() throws Exception {
        var locks = Locks.of(server.url());
        String name = name();
        int[] number = {0};
        var errors = new CopyOnWriteArrayList<Throwable>();
        Runnable work = () -> {
            for (int i = 0; i < 5; i++) {
                try (var lease = locks.lock(name, OPTIONS)) {
                    number[0]++;
                    Thread.sleep(1);
                    lease.check();
                } catch (Throwable e) {
                    errors.add(e);
                }
            }
        };
        var threads = new ArrayList<Thread>();
        boolean virtual = false;
        for (int i = 0; i < 30; i++) {
            Thread t;
            try {
                t = (Thread) Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, work);
                virtual = true;
            } catch (NoSuchMethodException e) { // before Java 21
                t = new Thread(work);
                t.start();
            }
            threads.add(t);
        }
        for (Thread t : threads) {
            t.join();
        }
        System.out.println("     " + (virtual ? "virtual threads" : "threads") + " of Java " + System.getProperty("java.version"));
        expect(errors, List.of());
        expect(number[0], 150);
    }

    /** More wait than there are connections for, and those that hold are not held up. */
    static void moreWaitersThanConnections() throws Exception {
        var locks = Locks.builder().url(server.url()).connections(4).build();
        String name = name();
        var lease = locks.lock(name, ttl(15_000));
        var waiters = new ArrayList<CompletableFuture<Lease>>();
        for (int i = 0; i < 12; i++) {
            waiters.add(locks.lockAsync(name, OPTIONS));
        }
        TimeUnit.SECONDS.sleep(16);
        lease.check();
        free(locks, name());
        lease.close();
        while (!waiters.isEmpty()) {
            CompletableFuture.anyOf(waiters.toArray(new CompletableFuture<?>[0])).get();
            for (var w : List.copyOf(waiters)) {
                if (w.isDone()) {
                    w.get().close();
                    waiters.remove(w);
                }
            }
        }
    }

    public static void main(String[] args) throws Exception {
        Servers.begin(args[0], args[1]);
        Check.run(Arrays.copyOfRange(args, 2, args.length), ServersTest.class);
    }
}
