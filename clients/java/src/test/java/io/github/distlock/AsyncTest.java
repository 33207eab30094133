package io.github.distlock;

import static io.github.distlock.Check.eventually;
import static io.github.distlock.Check.expect;
import static io.github.distlock.Check.fails;
import static io.github.distlock.Check.that;
import static io.github.distlock.Fake.DROP;
import static io.github.distlock.Fake.GRANT;
import static io.github.distlock.Fake.HANG;
import static io.github.distlock.Fake.HELD;
import static io.github.distlock.Fake.RELEASED;
import static io.github.distlock.Fake.RENEWED;
import static io.github.distlock.Fake.grant;
import static io.github.distlock.Fake.problem;
import static io.github.distlock.Fake.renewed;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.logging.Logger;
import java.util.stream.Collectors;

/** Tests what goes on in the background, and the bytes of answers. LocksTest runs them. */
final class AsyncTest {
    private static final Options OPTIONS = Options.defaults(), TRY = OPTIONS.wait(Duration.ZERO);

    static void cancelledWaiterLeavesTheQueue() throws Exception {
        for (String how : List.of("cancel", "time", "value")) {
            try (var s = new Fake(HANG)) {
                var f = s.locks().lockAsync("x", OPTIONS);
                eventually(() -> !s.of("acquire").isEmpty());
                switch (how) {
                    case "cancel" -> {
                        that(f.cancel(true));
                        fails(CancellationException.class, f::get);
                    }
                    case "time" -> fails(ExecutionException.class, () -> f.orTimeout(1, TimeUnit.MILLISECONDS).get());
                    default -> that(f.complete(null));
                }
                eventually(() -> s.of("release").size() == 1);
                expect(s.of("acquire").size(), 1);
                s.oneOwner();
            }
        }
    }

    /** Who ends what depends on a wait wants the lock no more. */
    static void dependentFutures() throws Exception {
        for (String how : List.of("cancel", "time", "value")) {
            try (var s = new Fake(HANG)) {
                var first = s.locks().lockAsync("x", OPTIONS);
                var f = first.thenApply(Lease::fence).thenCompose(CompletableFuture::completedFuture);
                eventually(() -> !s.of("acquire").isEmpty());
                switch (how) {
                    case "cancel" -> that(f.cancel(true));
                    case "time" -> fails(ExecutionException.class, () -> f.orTimeout(1, TimeUnit.MILLISECONDS).get());
                    default -> that(f.complete(null));
                }
                fails(CancellationException.class, first::get);
                eventually(() -> s.of("release").size() == 1);
            }
        }
        try (var s = new Fake(GRANT)) {
            var work = s.locks().lockAsync("x", OPTIONS).thenApply(l -> l);
            var lease = work.get();
            work.thenApply(l -> l.fence()).cancel(true);
            lease.close();
        }
    }

    /** A wait for a server that is not there is logged, and goes on. */
    static void waitsWithoutAServerAreLogged() throws Exception {
        var dead = new ServerSocket(0, 10, InetAddress.getLoopbackAddress());
        dead.close();
        try (var silent = new Servers.Odd(false)) {
            for (String url : List.of("http://127.0.0.1:" + dead.getLocalPort(), silent.url())) {
                var said = new CopyOnWriteArrayList<String>();
                LOG.setFilter(record -> said.add(record.getMessage()) && false);
                try {
                    var wait = Locks.of(url).lockAsync("nightly", OPTIONS);
                    eventually(() -> said.stream().anyMatch(m -> m.contains("\"nightly\"") && m.contains(url)));
                    that(!wait.isDone());
                    wait.cancel(true);
                } finally {
                    LOG.setFilter(null);
                }
            }
        }
    }

    static void grantAfterACancelIsReleased() throws Exception {
        try (var s = new Fake(GRANT.late(100)).on("release", RELEASED)) {
            var f = s.locks().lockAsync("x", TRY.minHold(Duration.ofHours(1)));
            eventually(() -> !s.of("acquire").isEmpty());
            f.cancel(false);
            eventually(() -> s.of("release").size() == 1);
        }
    }

    static void asyncErrors() throws Exception {
        try (var s = new Fake(HELD)) {
            var e = fails(ExecutionException.class, () -> s.locks().lockAsync("x", TRY).get());
            that(e.getCause() instanceof DistlockException.Held);
            fails(IllegalArgumentException.class, () -> s.locks().lockAsync("x", OPTIONS.reentrant(true)));
        }
    }

    /** What depends on a lease runs where it may block. */
    static void callbacksMayBlock() throws Exception {
        try (var s = new Fake(GRANT.late(100), grant(1_200, "8"), GRANT).on("renew", HANG).on("release", RELEASED.late(100))) {
            var never = new CountDownLatch(1);
            var locks = Locks.builder().url(s.url()).onEvent(e -> block(never)).build();
            locks.lockAsync("x", OPTIONS).thenAccept(l -> block(never));
            eventually(() -> s.of("acquire").size() == 1);
            var lease = locks.lock("y", OPTIONS.ttl(Duration.ofMillis(1_200)).onLost(() -> block(never)));
            lease.lost().thenRun(() -> block(never));
            eventually(() -> lease.lost().isDone()); // get would run what depends on it
            locks.lock("z", TRY).releaseAsync().thenRun(() -> block(never));
            locks.lock("z", TRY).close();
            never.countDown();
        }
    }

    private static void block(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    static void waitsLeaveHalfOfTheConnections() throws Exception {
        try (var s = new Fake(GRANT, HELD.late(300), HELD.late(300), HANG)) {
            var locks = Locks.builder().url(s.url()).connections(2).build();
            var lease = locks.lock("x", OPTIONS);
            var tries = List.of(locks.lockAsync("a", TRY), locks.lockAsync("b", TRY)); // they have all connections
            eventually(() -> s.of("acquire").size() == 3);
            var waits = List.of(locks.lockAsync("c", OPTIONS), locks.lockAsync("d", OPTIONS));
            eventually(() -> s.of("acquire").size() >= 4);
            lease.release(); // while one waits, and one is to wait
            expect(s.of("acquire").size(), 4);
            waits.forEach(w -> w.cancel(true));
            tries.forEach(w -> w.cancel(true));
        }
    }

    static void afterASilentConnectionTheOthersAreNotUsed() throws Exception {
        var grants = new Fake.Reply[5];
        java.util.Arrays.fill(grants, GRANT.late(100));
        try (var s = new Fake(grants)) {
            var locks = s.locks();
            var leases = new ArrayList<CompletableFuture<Lease>>();
            for (int i = 0; i < 5; i++) {
                leases.add(locks.lockAsync("x" + i, OPTIONS));
            }
            for (var lease : leases) {
                lease.get();
            }
            s.on("acquire", HANG, GRANT); // as if the network had forgotten the connections
            var y = locks.lockAsync("y", TRY.ttl(Duration.ofSeconds(1)));
            eventually(() -> s.of("acquire").size() >= 7);
            var ports = s.calls.stream().filter(c -> c.name().equals("acquire")).map(Fake.Call::port).toList();
            that(ports.subList(0, 5).contains(ports.get(5)) && !ports.subList(0, 5).contains(ports.get(6)));
            y.cancel(true);
            for (var lease : leases) {
                lease.get().release();
            }
        }
    }

    private static final Logger LOG = Logger.getLogger("io.github.distlock");

    private static void withBrokenLog(Check.Work work) throws Exception {
        LOG.setFilter(record -> {
            throw new Error("of the log");
        });
        try {
            work.run();
        } finally {
            LOG.setFilter(null);
        }
    }

    static void errorsDoNotEndTheLoop() throws Exception {
        withBrokenLog(() -> {
            var loop = new Loop();
            for (int i = 0; i < 3; i++) {
                var next = new CountDownLatch(1);
                loop.execute(() -> {
                    throw new OutOfMemoryError("of the test");
                });
                loop.execute(next::countDown);
                next.await();
            }
        });
    }

    static void forgottenLeaseIsReleasedAlsoIfTheLogFails() throws Exception {
        try (var s = new Fake(GRANT)) {
            withBrokenLog(() -> {
                s.locks().lock("x", OPTIONS);
                while (s.of("release").isEmpty()) {
                    System.gc();
                    Check.sleep(10);
                }
            });
        }
    }

    static void interruptDuringTheEndOfAWaitIsKept() throws Exception {
        try (var s = new Fake(GRANT, HANG).on("renew", renewed("lost")).on("release", HANG)) {
            var waiter = Thread.currentThread();
            new Thread(() -> {
                try {
                    eventually(() -> !s.of("release").isEmpty());
                } catch (InterruptedException e) {
                    // interrupts the waiter
                }
                waiter.interrupt();
            }).start();
            fails(DistlockException.Lost.class, () -> s.locks().lockAll(List.of("a", "b"), OPTIONS.ttl(Duration.ofSeconds(45))));
            eventually(Thread::interrupted);
        }
    }

    static void renewalsAreJoined() throws Exception {
        try (var s = new Fake(GRANT).on("renew", RENEWED)) {
            var locks = s.locks();
            var asked = new ArrayList<CompletableFuture<Lease>>();
            for (int i = 0; i < 1500; i++) {
                asked.add(locks.lockAsync("x" + i, OPTIONS.ttl(Duration.ofSeconds(45)))); // granted for 30 s: renewed at once
            }
            var leases = new ArrayList<Lease>();
            for (var f : asked) {
                leases.add(f.get());
            }
            eventually(() -> leases.stream().allMatch(l -> l.remaining().toSeconds() > 35));
            int requests = s.of("renew").size(), holds = 0;
            for (Map<?, ?> r : s.of("renew")) {
                holds += ((List<?>) r.get("holds")).size();
                that(((List<?>) r.get("holds")).size() <= 1000);
                expect(((Map<?, ?>) ((List<?>) r.get("holds")).get(0)).get("fence"), "7");
            }
            System.out.println("     1500 renewals in " + requests + " requests");
            expect(holds, 1500);
            that(requests < 750);
        }
    }

    static void events() throws Exception {
        var seen = new CopyOnWriteArrayList<Event>();
        try (var s = new Fake(HELD, GRANT, HELD, GRANT, grant(1_200, "9")).on("renew", renewed("lost"))) {
            var locks = Locks.builder().url(s.url()).onEvent(seen::add).build();
            locks.lock("a", OPTIONS).close();
            that(locks.tryLock("b").isEmpty());
            s.on("release", problem(410, "lost"));
            fails(DistlockException.Lost.class, () -> locks.lock("c").close());
            var lease = locks.lock("d", OPTIONS);
            lease.lost().get();
            eventually(() -> seen.size() == 8);
        }
        expect(seen.stream().map(e -> e.kind() + " " + e.name()).collect(Collectors.toList()),
                List.of("WAITED a", "TAKEN a", "RELEASED a", "FAILED b", "TAKEN c", "LOST c", "TAKEN d", "LOST d"));
        that(seen.stream().allMatch(e -> e.seconds() >= 0));
    }

    static void extensions() throws Exception {
        try (var s = new Fake(grant(20_000, "7")).on("renew", DROP, renewed("unknown"), renewed("ok"), renewed("invalid"), renewed("lost"))) {
            var lease = s.locks().lock("x", TRY.ttl(Duration.ofSeconds(20)).renew(false));
            expect(s.of("acquire").get(0).get("fixed"), true);
            lease.extend(Duration.ofSeconds(100));
            that(lease.remaining().toSeconds() >= 97);
            expect(((Map<?, ?>) ((List<?>) s.of("renew").get(2).get("holds")).get(0)).get("ttl_ms"), 100_000L);
            fails(DistlockException.Invalid.class, () -> lease.extend(Duration.ofDays(10_000)));
            lease.check();
            fails(DistlockException.Lost.class, () -> lease.extend(Duration.ofSeconds(5)));
            lease.lost().get();
        }
    }

    /** A hold that was released early is renewed until its end if the server does not confirm a life that lasts so long. */
    static void minimumHoldWithoutConfirmation() throws Exception {
        var busy = new Fake.Reply[5];
        java.util.Arrays.fill(busy, renewed("unknown"));
        busy[4] = RENEWED;
        try (var s = new Fake(grant(3_000, "7")).on("renew", busy)) {
            long start = System.nanoTime();
            var lease = s.locks().lock("x", TRY.ttl(Duration.ofSeconds(3)).minHold(Duration.ofSeconds(5)));
            fails(DistlockException.Unavailable.class, lease::release);
            fails(DistlockException.Lost.class, lease::check);
            eventually(() -> s.of("renew").size() >= 6);
            that(s.of("release").isEmpty() || System.nanoTime() - start >= 5_000_000_000L); // a slow machine may come late
            eventually(() -> s.of("release").size() == 1);
        }
    }

    static void answers() throws Exception {
        String head = "HTTP/1.1 200 OK\r\nContent-Type: x\r\n";
        for (String text : List.of(head + "Content-Length: 5\r\n\r\nhello", head + "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nA: b\r\n\r\n",
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + head + "content-length:5\r\nConnection: close\r\n\r\nhello")) {
            for (int size : new int[] {1, 7, 1000}) {
                Response r = parse(text, size);
                expect(List.of(r.status, r.header("content-type"), r.body(), r.keepAlive), List.of(200, "x", "hello", !text.contains("close")));
            }
        }
        expect(parse("HTTP/1.1 204 No Content\r\n\r\n", 3).body(), "");
        for (String wrong : List.of("HTTP/2 200 OK\r\n\r\n", "220 smtp\r\n\r\n", head + "\r\n", head + "Content-Length: -1\r\n\r\n", head + "Content-Length: x\r\n\r\n",
                head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", head + "Content-Length: 5\r\nTransfer-Encoding: chunked, x\r\n\r\nhello",
                head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n", head + "Transfer-Encoding: chunked\r\n\r\n2\r\nhello", head + "no colon\r\n\r\n",
                head + "Content-Length: 999999999\r\n\r\n", "x".repeat(70_000))) {
            fails(IOException.class, () -> parse(wrong, 100));
        }
    }

    private static Response parse(String text, int size) throws IOException {
        var parser = new Response.Parser();
        byte[] all = text.getBytes(StandardCharsets.ISO_8859_1);
        for (int at = 0; at < all.length; at += size) {
            Response r = parser.add(java.util.Arrays.copyOfRange(all, at, at + size), Math.min(size, all.length - at));
            if (r != null) {
                return r;
            }
        }
        throw new IllegalStateException("not complete");
    }

    /** What is no HTTP, and a host that is not known, give errors that say so. */
    static void hostsThatAreNone() throws Exception {
        // The second one is a server with TLS, the third one is a server without.
        for (var what : List.of(List.of("http", "220 mail", "not HTTP/1.1"), List.of("http", "HTTP/1.0 400 Bad Request", "https://"),
                List.of("https", "HTTP/1.1 400 Bad Request", "does not speak TLS"))) {
            try (var host = new ServerSocket(0, 10, InetAddress.getLoopbackAddress())) {
                Background.thread("host", () -> {
                    try {
                        for (;;) {
                            var c = host.accept();
                            c.getOutputStream().write((what.get(1) + "\r\n\r\n").getBytes(StandardCharsets.US_ASCII));
                        }
                    } catch (IOException e) {
                        // closed
                    }
                }).start();
                var e = fails(DistlockException.Unavailable.class, () -> Locks.of(what.get(0) + "://127.0.0.1:" + host.getLocalPort()).lock("x", TRY));
                expect(e.getMessage().contains(what.get(2)) ? "" : e.getMessage(), "");
            }
        }
        var e = fails(DistlockException.Unavailable.class, () -> Locks.of("http://host.invalid").lock("x", TRY));
        that(e.getMessage().contains("not known"));
        that(java.util.Arrays.stream(e.getStackTrace()).anyMatch(f -> f.getMethodName().contains("hostsThatAreNone")));
    }

    /** The thread ends when there is nothing to do, and begins anew. */
    static void theThreadEnds() throws Exception {
        var loop = new Loop();
        var threads = new CopyOnWriteArrayList<Thread>();
        for (int i = 0; i < 3; i++) {
            loop.execute(() -> {
                threads.add(Thread.currentThread());
                loop.after(10_000_000, () -> threads.add(Thread.currentThread()));
            });
            int n = 2 * i + 2;
            eventually(() -> threads.size() == n && !threads.get(n - 1).isAlive());
        }
        expect(threads.stream().distinct().count(), 3L);
    }
}
