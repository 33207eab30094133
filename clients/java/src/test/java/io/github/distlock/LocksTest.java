package io.github.distlock;

import static io.github.distlock.Check.eventually;
import static io.github.distlock.Check.expect;
import static io.github.distlock.Check.fails;
import static io.github.distlock.Check.sleep;
import static io.github.distlock.Check.that;
import static io.github.distlock.Fake.DROP;
import static io.github.distlock.Fake.GRANT;
import static io.github.distlock.Fake.HANG;
import static io.github.distlock.Fake.HELD;
import static io.github.distlock.Fake.RELEASED;
import static io.github.distlock.Fake.RENEWED;
import static io.github.distlock.Fake.TOKEN;
import static io.github.distlock.Fake.grant;
import static io.github.distlock.Fake.problem;
import static io.github.distlock.Fake.renewed;

import io.github.distlock.Fake.Call;
import io.github.distlock.Fake.Reply;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;


/** Tests the client against a server that answers as each test says: java -cp out distlock.LocksTest. */
final class LocksTest {
    private static final String DEAD = "http://127.0.0.1:1";

    private static <E extends Exception> E refused(Class<E> with, Fake s, Options o) throws Exception {
        E e = fails(with, () -> s.locks().lock("x", o));
        that(!e.toString().contains(TOKEN));
        s.of("acquire").forEach(b -> that(!e.toString().contains((String) b.get("owner"))));
        return e;
    }

    private static Options ttl(long millis) {
        return Options.defaults().ttl(Duration.ofMillis(millis));
    }

    private static final Options TRY = Options.defaults().wait(Duration.ZERO);

    static void takesAndReleases() throws Exception {
        try (var s = new Fake(grant(30_000, "9223372036854775807"))) {
            Lease lease;
            try (var l = s.locks().lock("x\"\u00fc\n", TRY)) {
                lease = l;
                expect(l.fence(), Long.MAX_VALUE);
                l.check();
                that(l.remaining().compareTo(Duration.ofSeconds(29)) <= 0);
            }
            expect(lease.remaining(), Duration.ZERO);
            fails(DistlockException.Lost.class, lease::check);
            that(!lease.lost().isDone());
            Call first = s.calls.get(0), last = s.calls.get(1);
            expect(List.of(first.name(), last.name(), first.token(), last.backend()), List.of("acquire", "release", "Bearer " + TOKEN, "fake"));
            expect(List.of(first.body().get("name"), first.body().get("mode")), List.of("x\"\u00fc\n", "exclusive"));
            expect(List.of(first.body().get("ttl_ms"), first.body().get("wait_ms")), List.of(30000L, 0L));
            expect(((Map<?, ?>) first.body().get("meta")).get("pid"), String.valueOf(ProcessHandle.current().pid()));
            that(!lease.toString().contains((String) first.body().get("owner")));
            s.oneOwner();
        }
    }

    /** Nothing is called at the beginning of a second block, so its end says that it ran without the lock. */
    static void secondBlockOfALease() throws Exception {
        try (var s = new Fake(GRANT)) {
            var lease = s.locks().lock("x", TRY);
            try (lease) {
                lease.check();
                lease.release(); // sooner than the end of the block
            }
            fails(DistlockException.Lost.class, () -> {
                try (lease) {
                    fails(DistlockException.Lost.class, lease::check);
                }
            });
            lease.release();
            expect(s.of("release").size(), 1);
            var both = s.locks().lockAll(List.of("a", "b"), TRY);
            both.close();
            fails(DistlockException.Lost.class, both::close);
        }
    }

    /** The server keeps a minimum hold, also if the process is killed at once. */
    static void minimumHoldOfAKilledProcess() throws Exception {
        try (var s = new Fake(grant(60_000, "7"))) {
            s.locks().lock("x", ttl(4_000).minHold(Duration.ofMinutes(1))).release();
            expect(s.of("acquire").get(0).get("ttl_ms"), 60_000L);
            expect(s.calls.size(), 1); // the release needs nothing now
        }
    }

    static void maximumHold() throws Exception {
        try (var s = new Fake(GRANT).on("renew", Fake.RENEWED)) {
            var o = ttl(30_000).maxHold(Duration.ofMillis(500));
            fails(IllegalArgumentException.class, () -> s.locks().lock("x", o.minHold(Duration.ofSeconds(1))));
            var lease = s.locks().lock("x", o);
            that(lease.remaining().toMillis() <= 500); // and not 29 s
            lease.lost().get();
            that(fails(DistlockException.Lost.class, lease::check).getMessage().contains("maxHold"));
            fails(DistlockException.Lost.class, lease::close);
            expect(s.of("release").size(), 1);
        }
    }

    static void lockOfTheJDK() throws Exception {
        try (var s = new Fake(GRANT)) {
            var lock = s.locks().asLock("x", TRY);
            fails(IllegalMonitorStateException.class, lock::unlock);
            lock.lock();
            s.on("acquire", HELD);
            that(!lock.tryLock());
            that(!lock.tryLock(1, java.util.concurrent.TimeUnit.MILLISECONDS));
            s.on("acquire", GRANT);
            lock.unlock();
            fails(IllegalMonitorStateException.class, lock::unlock);
            Thread.currentThread().interrupt();
            fails(InterruptedException.class, lock::lockInterruptibly);
            Thread.currentThread().interrupt();
            lock.lock();
            that(Thread.interrupted());
            Thread.currentThread().interrupt();
            that(lock.tryLock() && Thread.interrupted());
            lock.unlock();
            lock.unlock();
            that(s.of("release").size() >= 3); // and one of a place in the queue
            fails(UnsupportedOperationException.class, lock::newCondition);
        }
    }

    static void semaphoreAndReader() throws Exception {
        try (var s = new Fake(GRANT)) {
            s.locks().lock("x", Options.defaults().limit(3)).release();
            s.locks().lock("x", Options.defaults().mode("read")).release();
            expect(s.of("acquire").get(0).get("limit"), 3L);
            expect(s.of("release").stream().map(b -> b.get("mode")).toList(), List.of("counted", "read"));
        }
    }

    static void held() throws Exception {
        try (var s = new Fake(HELD)) {
            var e = refused(DistlockException.Held.class, s, TRY);
            expect(e.holders().get(0).fence(), 6L);
            that(e.getMessage().contains("job? (pid 5 on h)"));
            expect(s.of("release").size(), 0); // nothing was taken
            refused(DistlockException.Held.class, s, Options.defaults().wait(Duration.ofMillis(700)));
            expect(s.of("release").size(), 1); // its place in the queue
        }
    }

    static void waitingWithoutEndIsManyPollsByOneOwner() throws Exception {
        try (var s = new Fake(HELD, HELD, GRANT)) {
            s.locks().lock("x", Options.defaults()).release();
            expect(s.of("acquire").stream().map(b -> b.get("wait_ms")).toList(), java.util.Collections.nCopies(3, 20000L));
            s.oneOwner();
        }
    }

    static void ownerThatWasReleasedMakesNoOtherAttempt() throws Exception {
        var spent = new Reply(423, HELD.body().replace("\"held\"", "\"held\", \"spent\": true"));
        try (var s = new Fake(spent, spent, GRANT)) {
            s.locks().lock("x", Options.defaults()).release();
            var owners = s.of("acquire").stream().map(b -> b.get("owner")).toList();
            expect(new HashSet<>(owners).size(), 3);
            expect(s.of("release").stream().map(b -> b.get("owner")).toList(), owners.subList(2, 3));
        }
        try (var s = new Fake(spent)) {
            refused(DistlockException.Held.class, s, Options.defaults().wait(Duration.ofMillis(50)));
            expect(s.of("release").size(), 0); // nothing was taken
        }
    }

    static void ownerThatWasReleasedPerhapsIsReleasedAgain() throws Exception {
        var held = new Reply(423, HELD.body().replace("\"held\"", "\"held\", \"spent\": true"));
        var unknown = new Reply(504, HELD.body().replace("\"held\"", "\"unknown\", \"spent\": true"));
        for (var replies : List.of(new Reply[] {DROP, held, GRANT}, new Reply[] {unknown, GRANT})) {
            try (var s = new Fake(replies)) {
                s.locks().lock("x", Options.defaults()).release();
                var owners = s.of("acquire").stream().map(b -> b.get("owner")).toList();
                expect(new HashSet<>(owners).size(), 2);
                expect(s.of("release").stream().map(b -> b.get("owner")).toList(), List.of(owners.get(0), owners.get(owners.size() - 1)));
            }
        }
    }

    static void interruptedWaiterLeavesTheQueue() throws Exception {
        try (var s = new Fake(HANG)) {
            var waiter = Thread.currentThread();
            new Thread(() -> {
                try {
                    eventually(() -> !s.of("acquire").isEmpty());
                } catch (InterruptedException e) {
                    // interrupts the waiter
                }
                waiter.interrupt();
            }).start();
            fails(InterruptedException.class, () -> s.locks().lock("x", Options.defaults()));
            expect(s.of("release").size(), 1);
            s.oneOwner();
        }
    }

    static void finalErrors() throws Exception {
        try (var a = new Fake(problem(400, "invalid")); var b = new Fake(problem(501, "unsupported"));
                var c = new Fake(problem(403, "denied")); var d = new Fake((String) null, problem(401, "denied"))) {
            refused(DistlockException.Invalid.class, a, Options.defaults());
            refused(DistlockException.Invalid.class, b, Options.defaults());
            refused(DistlockException.Denied.class, c, Options.defaults());
            refused(DistlockException.Denied.class, d, Options.defaults());
        }
    }

    static void acquireWithoutAnswerIsRepeated() throws Exception {
        try (var s = new Fake(DROP, GRANT)) {
            s.locks().lock("x", TRY).release();
            expect(s.of("acquire").size(), 2);
            s.oneOwner();
        }
    }

    static void givingUpReleases() throws Exception {
        try (var s = new Fake(DROP)) {
            refused(DistlockException.Unavailable.class, s, TRY);
            expect(s.of("release").size(), 1);
            s.oneOwner();
        }
    }

    static void whatAProxySaysIsNoFact() throws Exception {
        var spent = new Reply(423, HELD.body().replace("\"held\"", "\"held\", \"spent\": true"));
        for (Reply r : List.of(GRANT, problem(410, "lost"), problem(423, "held"), spent, new Reply(404, ""), new Reply(200, "<html>"))) {
            try (var s = new Fake((String) null, r)) {
                refused(DistlockException.Unavailable.class, s, TRY);
                s.oneOwner();
            }
        }
        for (Reply r : List.of(new Reply(410, "{}"), new Reply(423, "{\"distlock\":[]}"), new Reply(200, "{\"fence\":1}"), new Reply(200, "null"))) {
            try (var s = new Fake(r)) {
                refused(DistlockException.Unavailable.class, s, TRY);
            }
        }
    }

    static void answerToAnotherRequestIsNoFact() throws Exception {
        for (Reply r : List.of(GRANT, HELD, problem(503, "unsent"), problem(403, "denied"))) {
            try (var s = new Fake(r)) {
                s.mixesUp = true;
                refused(DistlockException.Unavailable.class, s, TRY);
            }
        }
    }

    static void lateGrantIsNotUsed() throws Exception {
        try (var s = new Fake(grant(1, "7"), grant(30_000, "8")); var lease = s.locks().lock("x", Options.defaults())) {
            expect(lease.fence(), 8L);
            s.oneOwner();
        }
    }

    static void nextServer() throws Exception {
        try (var draining = new Fake(problem(503, "unsent")); var good = new Fake(GRANT)) {
            Locks.of(DEAD, draining.url(), good.url()).lock("x", TRY).release();
            expect(List.of(draining.calls.size(), good.calls.size()), List.of(1, 2));
        }
        fails(DistlockException.Unavailable.class, () -> Locks.of(DEAD).lock("x", TRY));
    }

    /** An attempt may arrive after the release at another server: its own one has to know. */
    static void releaseWhereAnAttemptMayArrive() throws Exception {
        for (boolean granted : List.of(true, false)) {
            try (var silent = new Fake(HANG); var next = new Fake(granted ? GRANT : HELD)) {
                var locks = Locks.of(silent.url(), next.url());
                locks.lockAsync("x", ttl(3_000).wait(Duration.ofSeconds(4))).handle((lease, error) -> {
                    if (granted) {
                        lease.release();
                    }
                    return null;
                }).get();
                eventually(() -> !silent.of("release").isEmpty() && !next.of("release").isEmpty());
                expect(silent.of("release").get(0).get("owner"), silent.of("acquire").get(0).get("owner"));
            }
        }
    }

    static void anotherBackendIsAnError() throws Exception {
        try (var s = new Fake(GRANT); var other = new Fake("other", GRANT)) {
            var locks = Locks.of(s.url(), other.url());
            locks.lock("x", TRY).release();
            s.on("acquire", problem(503, "unsent"));
            var e = fails(DistlockException.Unavailable.class, () -> locks.lock("x", Options.defaults()));
            that(e.getMessage().contains("another backend than the first server: other, not fake"));
        }
        try (var s = new Fake((String) null, problem(421, "unsent"))) {
            refused(DistlockException.Unavailable.class, s, Options.defaults());
        }
    }

    static void lossIsNoticedWhileARenewalHangs() throws Exception {
        try (var s = new Fake(grant(1200, "7")).on("renew", renewed("ok").late(1500))) {
            long start = System.nanoTime();
            var lease = s.locks().lock("x", ttl(1200));
            lease.lost().get();
            that(System.nanoTime() - start >= 1_080_000_000L);
            fails(DistlockException.Lost.class, lease::check);
            fails(DistlockException.Lost.class, lease::release);
            eventually(() -> !s.of("release").isEmpty()); // the backend may have it for longer
            sleep(1000); // the answer is too late
            expect(lease.remaining(), Duration.ZERO);
            fails(DistlockException.Lost.class, lease::check);
        }
    }

    static void lossIsNoticedBeforeARenewalTimesOut() throws Exception {
        try (var s = new Fake(grant(2_500, "7"), grant(11_000, "8")).on("renew", HANG)) {
            var lease = s.locks().lock("x", ttl(12_000)); // is lost in 1.5 s; its renewal times out in 4 s
            var clock = s.locks().lock("clock", ttl(12_000)); // is renewed in 3 s
            lease.lost().get();
            expect(s.of("renew").stream().map(b -> ((Map<?, ?>) ((List<?>) b.get("holds")).get(0)).get("name")).toList(), List.of("x"));
            clock.release();
        }
    }

    // A lease of 60 s whose server grants 40 s is renewed at once.
    static void renewalThatIsAnsweredTooLateRevivesNothing() throws Exception {
        var engine = Locks.class.getDeclaredField("engine");
        engine.setAccessible(true);
        var late = new java.util.concurrent.CountDownLatch(1);
        try (var s = new Fake(grant(1_500, "7")).on("renew", renewed("ok").late(700))) { // trusted for half a second
            var locks = s.locks();
            var lease = locks.lock("x", ttl(12_000));
            eventually(() -> !s.of("renew").isEmpty() || lease.lost().isDone());
            ((Engine) engine.get(locks)).loop.execute(() -> { // the timer of the deadline comes late
                try {
                    late.await();
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            });
            sleep(800); // were that too short, the test would only see less
            late.countDown();
            sleep(100);
            expect(lease.remaining(), Duration.ZERO);
            fails(DistlockException.Lost.class, lease::check);
        } finally {
            late.countDown();
        }
    }

    static void renewalByTheNextServer() throws Exception {
        for (String outcome : List.of("unknown", "unsent")) {
            try (var bad = new Fake(grant(40_000, "7")).on("renew", renewed(outcome)); var good = new Fake(GRANT).on("renew", renewed("ok"))) {
                var locks = Locks.of(bad.url(), good.url());
                try (var lease = locks.lock("x", ttl(60_000))) {
                    eventually(() -> lease.lost().isDone() || !good.of("renew").isEmpty());
                    lease.check();
                }
            }
        }
    }

    static void statedLoss() throws Exception {
        try (var s = new Fake(grant(40_000, "7")).on("renew", renewed("lost"))) {
            fails(DistlockException.Lost.class, () -> {
                try (var lease = s.locks().lock("x", ttl(60_000))) {
                    lease.lost().get();
                }
            });
            expect(s.of("release").size(), 0);
        }
    }

    static void renewal() throws Exception {
        try (var s = new Fake(grant(8_100, "7"))) { // is renewed at once, for 12 s
            s.on("renew", DROP, new Reply(410, "{}"), problem(410, "lost"), renewed("unknown"), renewed("ok"));
            try (var lease = s.locks().lock("x", ttl(12_000))) {
                eventually(() -> lease.lost().isDone() || lease.remaining().toSeconds() >= 9); // with the margin, the grant's was 7.1 s
                lease.check();
                that(lease.remaining().compareTo(Duration.ofSeconds(11)) <= 0);
            }
            expect(s.of("release").size(), 1);
        }
    }

    static void trustCountsFromBeforeTheRequest() throws Exception {
        try (var s = new Fake(grant(8_100, "7").late(500)).on("renew", renewed("ok").late(500))) {
            try (var lease = s.locks().lock("x", ttl(12_000))) { // is renewed at once
                that(lease.remaining().toMillis() <= 7_100 - 500);
                eventually(() -> lease.lost().isDone() || lease.remaining().toMillis() > 8_000);
                lease.check();
                that(lease.remaining().toMillis() <= 11_000 - 500);
            }
        }
    }

    static void trustCountsFromTheEndOfTheWait() throws Exception {
        try (var s = new Fake(waited(400).late(500))) {
            long start = System.nanoTime();
            try (var lease = s.locks().lock("x", TRY)) {
                var left = lease.remaining();
                that(left.toMillis() <= 29_400 - 500);
                that(left.plusNanos(System.nanoTime() - start).toMillis() >= 29_400);
            }
        }
        try (var s = new Fake(waited(20_000))) { // a wait that was longer than the whole call is not believed
            try (var lease = s.locks().lock("x", TRY)) {
                that(lease.remaining().toMillis() <= 29_000);
            }
        }
    }

    private static Reply waited(int millis) {
        return new Reply(200, GRANT.body().replace("waited_ms\":0", "waited_ms\":" + millis));
    }

    static void releaseWithoutAnswerIsRepeated() throws Exception {
        try (var s = new Fake(GRANT).on("release", DROP, problem(503, "unknown"), problem(410, "lost"))) {
            s.locks().lock("x", TRY).release(); // the first one has released it
            expect(s.of("release").size(), 3);
        }
    }

    static void releaseThatIsNeverConfirmed() throws Exception {
        try (var s = new Fake(GRANT).on("release", DROP)) {
            s.locks().lock("x", TRY).close(); // no error: the work is done
            fails(DistlockException.Unavailable.class, () -> s.locks().lock("x", TRY).release());
        }
    }

    /** The call may give up, but the release goes on; a right may be given back. */
    static void releaseOutlastsWhatRefusesIt() throws Exception {
        for (Reply odd : List.of(DROP, problem(503, "unsent"), problem(403, "denied"), problem(429, "unsent"))) {
            var all = new Reply[7];
            Arrays.fill(all, odd);
            all[6] = RELEASED;
            try (var s = new Fake(GRANT).on("release", all)) {
                var lease = s.locks().lock("x", TRY);
                fails(DistlockException.Unavailable.class, lease::release);
                eventually(() -> s.of("release").size() == 7);
            }
        }
    }

    /** A token that is away ends no wait of a client that was let in before. One that never was is told at once, and a try too. */
    static void waitOutlastsARefusal() throws Exception {
        for (Reply odd : List.of(problem(401, "denied"), problem(403, "denied"), problem(429, "unsent"), new Reply(503, "<html>"))) {
            try (var s = new Fake(GRANT)) {
                var locks = s.locks();
                locks.lock("x", TRY).close();
                s.on("acquire", odd, odd, odd, GRANT);
                locks.lock("x", Options.defaults()).close();
                expect(s.of("acquire").size(), 5);
            }
        }
        try (var s = new Fake(GRANT)) {
            var locks = s.locks();
            locks.lock("x", TRY).close();
            s.on("acquire", problem(403, "denied"));
            fails(DistlockException.Denied.class, () -> locks.lock("x", TRY));
            fails(DistlockException.Denied.class, () -> locks.lock("x", Options.defaults().wait(Duration.ofMillis(200))));
        }
    }

    static void releaseByAnInterruptedThread() throws Exception {
        try (var s = new Fake(GRANT)) {
            var lease = s.locks().lock("x", TRY);
            Thread.currentThread().interrupt();
            lease.release();
            that(Thread.interrupted());
            expect(s.of("release").size(), 1);
        }
    }

    static void releaseByAThreadThatIsInterrupted() throws Exception {
        try (var s = new Fake(GRANT).on("release", HANG, RELEASED)) {
            var lease = s.locks().lock("x", ttl(1_500).wait(Duration.ZERO));
            var caller = Thread.currentThread();
            new Thread(() -> {
                while (s.of("release").isEmpty()) {
                    Thread.onSpinWait();
                }
                caller.interrupt();
            }).start();
            lease.release();
            that(Thread.interrupted());
            expect(s.of("release").size(), 2);
        }
    }

    static void lostBeforeTheRelease() throws Exception {
        try (var s = new Fake(GRANT).on("release", problem(410, "lost"))) {
            fails(DistlockException.Lost.class, () -> s.locks().lock("x", TRY).close());
        }
    }

    static void wrongArguments() throws Exception {
        for (var shown : Map.of("redis://h/x", "redis://h is", "http://user:hidden@h:1/x?y", "http://h:1 is", "http://h:99999/hidden", "http://h:99999 is").entrySet()) {
            String message = fails(IllegalArgumentException.class, () -> Locks.of(shown.getKey())).getMessage();
            that(message.startsWith(shown.getValue()) && !message.contains("hidden"));
        }
        for (String url : List.of("redis://h", "http://user:hidden@h", "localhost:1", "unix:/s", "http://h?a=b", "no URL hidden", "http://h:99999", "http+unix:///%zz", "http+unix://h/s")) {
            that(!fails(IllegalArgumentException.class, () -> Locks.of(url)).getMessage().contains("hidden"));
        }
        for (String token : List.of("a\nb", "\u00fc", "")) {
            fails(IllegalArgumentException.class, () -> Locks.builder().url("http://h").token(token).build());
        }
        fails(IllegalArgumentException.class, Locks::of);
        fails(IllegalArgumentException.class, () -> ttl(0));
        that(fails(IllegalArgumentException.class, () -> TRY.mode("shared")).getMessage().contains("read"));
        var none = Locks.of(DEAD);
        that(fails(IllegalArgumentException.class, () -> none.lock("", TRY)).getMessage().contains("empty"));
        for (var wrong : Map.of(TRY.ttl(Duration.ofMillis(30)), "Duration.ofSeconds(30)", TRY.ttl(Duration.ofSeconds(30_000)), "Duration.ofMillis(30000)",
                TRY.renew(false).minHold(Duration.ofMinutes(1)), "minHold").entrySet()) {
            that(fails(IllegalArgumentException.class, () -> none.lock("x", wrong.getKey())).getMessage().contains(wrong.getValue()));
            fails(IllegalArgumentException.class, () -> none.lockAsync("x", wrong.getKey()));
        }
        fails(IllegalArgumentException.class, () -> TRY.limit(0));
        for (Check.Work w : List.<Check.Work>of(() -> TRY.limit(3).mode("read"), () -> TRY.mode("read").limit(3), () -> TRY.mode("counted"))) {
            that(fails(IllegalArgumentException.class, w).getMessage().contains("want exclusive, write or read, or a limit"));
        }
        var locks = Locks.of("http://h");
        for (var missing : Map.<String, Check.Work>of("url", () -> Locks.of((String) null), "ttl", () -> TRY.ttl(null), "minHold", () -> TRY.minHold(null),
                "name", () -> locks.lock(null), "options", () -> locks.tryLock("x", null), "names", () -> locks.lockAll(null, TRY)).entrySet()) {
            expect(fails(NullPointerException.class, missing.getValue()).getMessage(), missing.getKey());
        }
    }

    static void filesWithoutCertificates() throws Exception {
        var file = java.nio.file.Files.createTempFile("none", ".pem");
        String message = fails(IllegalArgumentException.class, () -> Locks.builder().url("https://h").caFile(file).build()).getMessage();
        expect(message, "the certificates: " + file + " has no certificate in PEM");
        java.nio.file.Files.writeString(file, "no PEM");
        expect(fails(IllegalArgumentException.class, () -> Locks.builder().url("https://h").caFile(file).build()).getMessage(), message);
        java.nio.file.Files.delete(file);
    }

    /** A key may be written as PKCS #8, PKCS #1 or SEC 1, and stand before its certificate. */
    static void kindsOfKeys() throws Exception {
        var dir = java.nio.file.Files.createTempDirectory("distlock-java");
        for (String algorithm : List.of("RSA", "EC")) {
            FeaturesTest.certify(dir, algorithm, algorithm);
            String cert = java.nio.file.Files.readString(dir.resolve(algorithm + ".crt"));
            String key = java.nio.file.Files.readString(dir.resolve(algorithm + ".key"));
            byte[] der = java.util.Base64.getMimeDecoder().decode(key.replaceAll("-----.*", ""));
            int at = contents(der, 0) + 3, inner = contents(der, at + 2 + der[at + 1]); // behind the version and the algorithm
            String old = FeaturesTest.pem(algorithm + " PRIVATE KEY", Arrays.copyOfRange(der, inner, der.length));
            for (String written : List.of(key, old, "-----BEGIN EC PARAMETERS-----\nAAAA\n-----END EC PARAMETERS-----\n" + old)) {
                var both = java.nio.file.Files.writeString(dir.resolve("both.pem"), written + cert);
                new Trust(null, both, both, both).context();
            }
        }
        var locked = java.nio.file.Files.writeString(dir.resolve("locked.key"), "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END RSA PRIVATE KEY-----\n");
        that(fails(IllegalArgumentException.class, () -> Locks.builder().url("https://h").certFile(dir.resolve("EC.crt")).keyFile(locked).build())
                .getMessage().contains("without a password"));
        that(fails(IllegalArgumentException.class, () -> Locks.builder().url("https://h").certFile(dir.resolve("EC.crt")).keyFile(dir.resolve("RSA.key")).build())
                .getMessage().contains("no key of the certificate"));
    }

    /** Returns where the contents of a value of DER begin. */
    private static int contents(byte[] der, int at) {
        return at + 2 + (der[at + 1] < 0 ? der[at + 1] & 0x7f : 0);
    }

    static void socketsWithSpaces() throws Exception {
        String message = fails(DistlockException.Unavailable.class, () -> Locks.of("http+unix:///no%20such+socket").tryLock("x")).getMessage();
        that(message.startsWith("http+unix:///no such+socket: "));
    }

    static void whatIsNoServer() throws Exception {
        try (var s = new Fake(problem(404, "?"))) {
            s.mixesUp = true;
            that(fails(DistlockException.Unavailable.class, () -> s.locks().tryLock("x")).getMessage()
                    .endsWith(": status 404, and not from a distlock server"));
        }
    }

    /** A short TTL bounds how long its renewal may take, and no other's. */
    static void renewalsOfDifferentTTLs() throws Exception {
        // The last one is to be renewed after 1.5 s, which is soon enough to join others.
        try (var s = new Fake(grant(300, "1"), grant(300, "2"), grant(41_500, "3")).on("renew", RENEWED)) {
            var locks = s.locks();
            var all = List.of(locks.lock("a", ttl(300)), locks.lock("b", ttl(300)), locks.lock("c", ttl(60_000)));
            eventually(() -> all.get(2).remaining().compareTo(Duration.ofSeconds(50)) > 0);
            for (var body : s.of("renew")) {
                var names = new HashSet<>();
                ((List<?>) body.get("holds")).forEach(h -> names.add(((Map<?, ?>) h).get("name")));
                that(!names.contains("c") || names.size() == 1);
            }
            all.forEach(l -> l.releaseAsync());
        }
    }

    /** An interrupt ends an election even after a loss: nobody can tell for what it was meant. Another error does not. */
    static void electionsAfterALoss() throws Exception {
        try (var s = new Fake(grant(3_000, "1"), grant(3_000, "2"), GRANT).on("renew", problem(503, "unknown"))) {
            var terms = new java.util.ArrayList<Long>();
            fails(InterruptedException.class, () -> s.locks().elect("x", ttl(3_000), lease -> {
                terms.add(lease.fence());
                if (terms.size() == 1) {
                    lease.lost().join();
                    throw new IllegalStateException("after the loss");
                }
                var leader = Thread.currentThread();
                lease.lost().thenRun(leader::interrupt);
                Thread.sleep(60_000);
                return null;
            }));
            expect(terms, List.of(1L, 2L));
        }
    }

    static void json() throws Exception {
        expect(Json.read(" {\"a\" : [1, -2.5e3, true, null, {}, []], \"\\u00fc\\n\\\"\" : \"\\/\"} "), new LinkedHashMap<String, Object>() {{
            put("a", Arrays.asList(1L, -2500.0, true, null, Map.of(), List.of()));
            put("\u00fc\n\"", "/");
        }});
        for (String wrong : List.of("", "{", "[1,]", "{\"a\":1,}", "{a:1}", "[1 2]", "01", "nul", "\"\\x\"", "\"a", "{} {}", "\"\\u12\"", "\"\n\"", "{}\0",
                "[".repeat(100_000))) {
            fails(IllegalArgumentException.class, () -> Json.read(wrong));
        }
        expect(Json.read(Json.write(Map.of("\"\\\u0000\ud83d\ude00", List.of(1, "b")))), Map.of("\"\\\u0000\ud83d\ude00", List.of(1L, "b")));
    }

    public static void main(String[] args) {
        Check.run(args, LocksTest.class, AsyncTest.class, CallsTest.class);
    }
}
