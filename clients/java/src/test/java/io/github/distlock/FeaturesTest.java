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

import io.github.distlock.Servers.Real;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Tests what the client offers on real servers: java -cp … FeaturesTest COMMAND BACKEND [TEST…], as ServersTest. */
final class FeaturesTest {
    static void kinds() throws Exception {
        var locks = Locks.of(server.url());
        String name = name();
        try (var a = locks.lock(name, TRY.mode("read")); var b = locks.lock(name, TRY.mode("read"))) {
            that(locks.tryLock(name, OPTIONS.mode("write")).isEmpty());
            that(a.fence() > 0 && b.fence() > 0);
        }
        String permits = name();
        try (var a = locks.lock(permits, TRY.limit(2)); var b = locks.lock(permits, TRY.limit(2))) {
            that(locks.tryLock(permits, OPTIONS.limit(2)).isEmpty());
            that(a.fence() > 0 && b.fence() > 0);
        }
        fails(IllegalArgumentException.class, () -> locks.lock("\ud800"));
    }

    static void reentrancy() throws Exception {
        var locks = Locks.of(server.url());
        var o = OPTIONS.reentrant(true).wait(Duration.ZERO);
        String name = name();
        var outer = locks.lock(name, o);
        try (var inner = locks.lock(name, o)) {
            expect(inner.fence(), outer.fence());
            outer.close();
            inner.check();
            fails(DistlockException.Lost.class, outer::check);
            outer.release(); // does nothing
            that(CompletableFuture.supplyAsync(() -> {
                try {
                    return locks.tryLock(name, o).isEmpty();
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            }).get()); // another thread waits
            fails(DistlockException.Invalid.class, () -> locks.lock(name, o.mode("read")));
            inner.check();
        }
        free(locks, name);
    }

    static void minimumHold() throws Exception {
        var locks = Locks.of(server.url());
        String name = name();
        var lease = locks.lock(name, ttl(4_000).minHold(Duration.ofSeconds(9)));
        long taken = System.nanoTime();
        lease.close();
        fails(DistlockException.Lost.class, lease::check);
        TimeUnit.SECONDS.sleep(5); // longer than its TTL
        that(locks.locked(name));
        locks.lock(name, OPTIONS.wait(Duration.ofSeconds(60))).close();
        that(System.nanoTime() - taken >= 8_900_000_000L);
    }

    /** A program that takes a lock with a minimum hold, and ends. */
    static final class Leaver {
        public static void main(String[] args) throws Exception {
            Locks.of(args[0]).lock(args[1], ttl(4_000).minHold(Duration.ofSeconds(60))).close();
            Runtime.getRuntime().halt(0);
        }
    }

    /** A minimum hold outlives its process, beyond the TTL. */
    static void minimumHoldOfAProcessThatEnds() throws Exception {
        String name = name(), java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        var child = new ProcessBuilder(java, "-cp", System.getProperty("java.class.path"), Leaver.class.getName(), server.url(), name).inheritIO().start();
        expect(child.waitFor(), 0);
        TimeUnit.SECONDS.sleep(5);
        that(Locks.of(server.url()).locked(name));
    }

    static void fixedAndExtended() throws Exception {
        var locks = Locks.of(server.url());
        var lease = locks.lock(name(), ttl(1_500).renew(false));
        lease.lost().get();
        fails(DistlockException.Lost.class, lease::close);
        var longer = locks.lock(name(), ttl(6_000).renew(false));
        longer.extend(Duration.ofSeconds(60));
        that(longer.remaining().toSeconds() > 50);
        TimeUnit.SECONDS.sleep(7);
        longer.check();
        that(locks.tryLock(longer.name()).isEmpty());
        longer.close();
        fails(DistlockException.Lost.class, () -> longer.extend(Duration.ofSeconds(1)));
    }

    static void asks() throws Exception {
        var locks = Locks.builder().url(server.url()).meta("team", "a").build();
        String name = name() + "/../ä+b *.";
        that(!locks.locked(name) && locks.holder(name).isEmpty());
        try (var lease = locks.lock(name, TRY.meta("job", "7"))) {
            var holder = locks.holder(name).get();
            that(holder.fence() == 0 || holder.fence() == lease.fence()); // Redis knows it later
            expect(List.of(holder.mode(), holder.meta().get("job"), holder.meta().get("team"), holder.meta().get("pid")),
                    List.of("exclusive", "7", "a", String.valueOf(ProcessHandle.current().pid())));
        }
        that(!locks.locked(name));
    }

    static void severalAtOnce() throws Exception {
        var locks = Locks.of(server.url());
        String a = name() + "a", b = a + "b", c = a + "c";
        var errors = new CopyOnWriteArrayList<Throwable>();
        var threads = new ArrayList<Thread>();
        for (var names : List.of(List.of(a, b, c), List.of(c, b, a), List.of(b, c, a))) {
            threads.add(new Thread(() -> {
                try {
                    for (int i = 0; i < 20; i++) {
                        try (var all = locks.lockAll(names, OPTIONS)) {
                            all.check();
                            expect(all.all().get(0).name(), a);
                        }
                    }
                } catch (Throwable e) {
                    errors.add(e);
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread t : threads) {
            t.join();
        }
        expect(errors, List.of());
        try (var held = locks.lock(b, TRY)) {
            fails(DistlockException.Held.class, () -> locks.lockAll(List.of(c, b, a), TRY.minHold(Duration.ofHours(1))));
            held.check();
            free(locks, a); // it was given back, without a minimum hold
        }
        fails(IllegalArgumentException.class, () -> locks.lockAll(List.of(a, a), OPTIONS));
    }

    static void elections() throws Exception {
        var locks = Locks.of(server.url());
        String name = name();
        var terms = new AtomicInteger();
        var leading = new AtomicInteger();
        var ends = new ArrayList<CompletableFuture<String>>();
        var threads = new ArrayList<Thread>();
        for (int i = 0; i < 2; i++) {
            var end = new CompletableFuture<String>();
            ends.add(end);
            threads.add(new Thread(() -> {
                try {
                    locks.elect(name, OPTIONS, lease -> {
                        expect(leading.incrementAndGet(), 1);
                        terms.incrementAndGet();
                        Thread.sleep(100);
                        leading.decrementAndGet();
                        lease.check();
                        return null;
                    });
                } catch (Throwable e) {
                    end.complete(e.getClass().getSimpleName());
                }
            }));
        }
        threads.forEach(Thread::start);
        eventually(() -> terms.get() >= 4);
        threads.forEach(Thread::interrupt);
        for (var end : ends) {
            expect(end.get(), "InterruptedException");
        }
        free(locks, name);
        fails(java.io.IOException.class, () -> locks.elect(name, OPTIONS, lease -> {
            throw new java.io.IOException("of the leader");
        }));
        expect(locks.<Integer, RuntimeException>using(name, TRY, lease -> 7), 7);
    }

    private static void move(Path file, byte[] text) throws IOException {
        Path fresh = Files.createTempFile(file.getParent(), "fresh", "");
        Files.write(fresh, text);
        Files.move(fresh, file, StandardCopyOption.REPLACE_EXISTING);
    }

    private static void write(Path file, String text) throws IOException {
        move(file, text.getBytes(StandardCharsets.UTF_8));
    }

    private static String line(String token, String prefix) throws Exception {
        var hex = new StringBuilder();
        for (byte b : MessageDigest.getInstance("SHA-256").digest(token.getBytes(StandardCharsets.UTF_8))) {
            hex.append(String.format("%02x", b));
        }
        return "ci sha256:" + hex + " lock,see " + prefix + "\n";
    }

    static void tokenInAFile() throws Exception {
        Path dir = Files.createTempDirectory("distlock-java"), tokens = dir.resolve("tokens"), file = dir.resolve("token");
        write(tokens, line("first", "java/"));
        write(file, "first\n");
        var real = new Real("127.0.0.1:0", "--tokens", tokens.toString());
        var locks = Locks.builder().url(real.url()).tokenFile(file).build();
        free(locks, name());
        fails(DistlockException.Denied.class, () -> locks.lock("other", TRY));
        fails(DistlockException.Denied.class, () -> Locks.of(real.url()).lock("java/x"));
        write(tokens, line("second", "java/"));
        write(file, "second\n");
        eventually(() -> { // the server reads its file from time to time
            try {
                Locks.builder().url(real.url()).token("first").build().lock(name(), TRY).close();
                return false;
            } catch (DistlockException.Denied e) {
                return true;
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        });
        free(locks, name());
        that(!fails(IllegalArgumentException.class, () -> Locks.builder().url(real.url()).tokenFile(dir.resolve("none"))
                .build()).getMessage().contains("second"));
        real.kill();
    }

    static void unixSocket() throws Exception {
        Path dir = Files.createTempDirectory("distlock-java");
        var real = new Real("unix:" + dir.resolve("socket"));
        var locks = Locks.of("http+unix://" + dir.resolve("socket"));
        try (var lease = locks.lock(name(), ttl(12_000))) {
            TimeUnit.SECONDS.sleep(13);
            lease.check();
            that(locks.tryLock(lease.name()).isEmpty());
        }
        real.kill();
        fails(DistlockException.Unavailable.class, () -> locks.lock(name(), TRY));
    }

    /** Makes a key and its certificate, as files in PEM. */
    static void certify(Path dir, String name, String algorithm) throws Exception {
        Path store = dir.resolve(name + ".p12");
        Files.deleteIfExists(store);
        var keytool = Path.of(System.getProperty("java.home"), "bin", "keytool").toString();
        var p = new ProcessBuilder(keytool, "-genkeypair", "-keystore", store.toString(), "-storepass", "password", "-alias", "a", "-dname", "CN=" + name,
                "-keyalg", algorithm, "-ext", "san=ip:127.0.0.1", "-validity", "2").redirectErrorStream(true).start();
        String said = new String(p.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        expect(p.waitFor() == 0 ? "" : said, "");
        var keys = KeyStore.getInstance("PKCS12");
        keys.load(new ByteArrayInputStream(Files.readAllBytes(store)), "password".toCharArray());
        write(dir.resolve(name + ".key"), pem("PRIVATE KEY", keys.getKey("a", "password".toCharArray()).getEncoded()));
        write(dir.resolve(name + ".crt"), pem("CERTIFICATE", keys.getCertificate("a").getEncoded()));
    }

    static String pem(String what, byte[] der) {
        return "-----BEGIN " + what + "-----\n" + Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(der) + "\n-----END " + what + "-----\n";
    }

    static void certificates() throws Exception {
        Path dir = Files.createTempDirectory("distlock-java");
        certify(dir, "server", "EC");
        certify(dir, "client", "RSA");
        Path ca = dir.resolve("clients.crt");
        move(ca, Files.readAllBytes(dir.resolve("client.crt")));
        var real = new Real("127.0.0.1:0", "--tls-cert", dir.resolve("server.crt").toString(), "--tls-key", dir.resolve("server.key").toString(),
                "--client-ca", ca.toString());
        String url = "https://" + real.address;
        var locks = Locks.builder().url(url).certFile(dir.resolve("client.crt")).keyFile(dir.resolve("client.key"))
                .caFile(dir.resolve("server.crt")).build();
        try (var lease = locks.lock(name(), TRY)) {
            expect(locks.holder(lease.name()).get().meta().get("pid"), String.valueOf(ProcessHandle.current().pid()));
        }
        var holds = new ArrayList<CompletableFuture<Lease>>();
        for (int i = 0; i < 300; i++) { // a renewal of many records
            holds.add(locks.lockAsync(name() + "-".repeat(1000), ttl(30_000)));
        }
        var leases = new ArrayList<Lease>();
        for (var f : holds) {
            leases.add(f.get());
        }
        Servers.awaitRenewals(leases);
        leases.forEach(Lease::close);
        fails(DistlockException.Unavailable.class, () -> Locks.builder().url(url).caFile(dir.resolve("server.crt")).build().lock(name(), TRY));
        fails(DistlockException.Unavailable.class, () -> Locks.of(url).lock(name(), TRY));
        fails(DistlockException.Unavailable.class, () -> Locks.builder().url(url.replace("127.0.0.1", "localhost"))
                .certFile(dir.resolve("client.crt")).keyFile(dir.resolve("client.key")).caFile(dir.resolve("server.crt")).build().lock(name(), TRY));
        certify(dir, "client", "EC");
        move(ca, Files.readAllBytes(dir.resolve("client.crt")));
        real.restart();
        free(locks, name());
        real.kill();
        write(dir.resolve("odd.key"), "-----BEGIN EC PRIVATE KEY-----\n-----END EC PRIVATE KEY-----\n");
        that(fails(IllegalArgumentException.class, () -> Locks.builder().url(url).certFile(dir.resolve("client.crt"))
                .keyFile(dir.resolve("odd.key")).build()).getMessage().contains("openssl pkcs8"));
    }

    public static void main(String[] args) throws Exception {
        Servers.begin(args[0], args[1]);
        Check.run(Arrays.copyOfRange(args, 2, args.length), FeaturesTest.class);
    }
}
