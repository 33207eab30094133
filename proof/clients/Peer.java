// Takes locks as the test says, with the client for Java. See peer_test.go.

import io.github.distlock.DistlockException;
import io.github.distlock.Lease;
import io.github.distlock.Locks;
import io.github.distlock.Options;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;

public final class Peer {
    private static Locks locks;
    private static Lease lease;

    private static synchronized void say(String words) {
        System.out.println(words);
        System.out.flush();
    }

    /** Says when the lease was trusted last, once it is lost. */
    private static void watch(Lease lease) {
        long trusted = 0;
        while (!lease.remaining().isZero()) {
            long now = System.nanoTime();
            if (!lease.remaining().isZero()) {
                trusted = now;
            }
            try {
                Thread.sleep(10);
            } catch (InterruptedException e) {
                return;
            }
        }
        long last = trusted;
        lease.lost().thenRun(() -> say("lost " + last));
    }

    private static void lock(String name, String ttl, String wait, String mode, String limit) throws InterruptedException {
        var options = Options.defaults().ttl(Duration.ofMillis(Long.parseLong(ttl))).mode(mode);
        if (!wait.startsWith("-")) {
            options = options.wait(Duration.ofMillis(Long.parseLong(wait)));
        }
        if (!limit.equals("0")) {
            options = options.limit(Integer.parseInt(limit));
        }
        var taken = lease = locks.lock(name, options);
        var watcher = new Thread(() -> watch(taken));
        watcher.setDaemon(true);
        watcher.start();
        say("held " + taken.fence());
    }

    private static void note(String file, String what, Lease lease) throws Exception {
        Files.writeString(Path.of(file + ".history"), what + " " + lease.fence() + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    private static void count(String name, String file, int rounds) throws Exception {
        for (int i = 0; i < rounds; i++) {
            try (var lease = locks.lock(name, Options.defaults())) {
                note(file, "begin", lease);
                String[] before = Files.readString(Path.of(file)).split(" ");
                if (lease.fence() <= Long.parseLong(before[1])) {
                    throw new IllegalStateException("an older fence");
                }
                Files.writeString(Path.of(file), (Long.parseLong(before[0]) + 1) + " " + lease.fence());
                note(file, "end", lease);
            }
        }
        say("counted");
    }

    public static void main(String[] urls) throws Exception {
        var builder = Locks.builder().url(urls);
        if (System.getenv("DISTLOCK_TOKEN") != null) {
            builder.token(System.getenv("DISTLOCK_TOKEN"));
        }
        locks = builder.build();
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String[] w = line.split(" ");
            try {
                switch (w[0]) {
                    case "lock" -> lock(w[1], w[2], w[3], w[4], w[5]);
                    case "release" -> {
                        lease.release();
                        say("released");
                    }
                    default -> count(w[1], w[2], Integer.parseInt(w[3]));
                }
            } catch (DistlockException e) {
                say("error " + e.getClass().getSimpleName() + " " + e.getMessage());
            }
        }
        System.exit(0);
    }
}
