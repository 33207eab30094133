package distlock.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;

/**
 * A Java process with Redisson, driven in lines. A call is "id thread command arguments…" on
 * stdin, its answer "id ok words…" or "id error exception" on stdout, whenever it is
 * there. Calls of one thread run in order, on that thread, which Redisson knows as the
 * owner of locks. The process ends with its stdin. Times are ns since 1970.
 */
public final class Peer {
    private final Clients clients = new Clients();
    private final Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
    private final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    public static void main(String[] args) throws IOException {
        new Peer().serve();
        Runtime.getRuntime().halt(0);
    }

    private void serve() throws IOException {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[1], name -> Executors.newSingleThreadExecutor(run -> new Thread(run, name)))
                .execute(() -> answer(words[0], words[2], Arrays.copyOfRange(words, 3, words.length)));
        }
    }

    private void answer(String id, String command, String[] args) {
        String reply;
        try {
            reply = "ok " + run(command, args);
        } catch (Throwable e) {
            reply = "error " + describe(e);
        }
        synchronized (out) {
            out.println(id + " " + reply);
            out.flush();
        }
    }

    /** One line with the exception and its causes. */
    private static String describe(Throwable e) {
        String line = e.getClass().getSimpleName() + ": " + String.valueOf(e.getMessage()).replace('\n', ' ');
        return e.getCause() == null ? line : line + " by " + describe(e.getCause());
    }

    private Object run(String command, String[] a) throws Exception {
        return switch (command) {
            case "connect" -> clients.connect(a[0], a[1], a[2], Long.parseLong(a[3]), a.length > 4 ? a[4] : "");
            case "close" -> clients.close(a[0]);
            case "lock" -> lock(clients.lock(a[0], a[1], a[2]), Long.parseLong(a[3]));
            case "try" -> clients.lock(a[0], a[1], a[2]).tryLock(Long.parseLong(a[3]), Long.parseLong(a[4]), TimeUnit.MILLISECONDS);
            case "unlock" -> unlock(clients.lock(a[0], a[1], a[2]));
            case "force" -> clients.lock(a[0], a[1], a[2]).forceUnlock();
            case "locked" -> clients.lock(a[0], a[1], a[2]).isLocked();
            case "mine" -> clients.lock(a[0], a[1], a[2]).isHeldByCurrentThread();
            case "left" -> clients.lock(a[0], a[1], a[2]).remainTimeToLive();
            case "permits" -> clients.semaphore(a[0], a[1]).trySetPermits(Integer.parseInt(a[2]));
            case "free" -> clients.semaphore(a[0], a[1]).availablePermits();
            case "acquire" -> acquire(a[0], a[1], Long.parseLong(a[2]));
            case "tryacquire" -> clients.semaphore(a[0], a[1]).tryAcquire(Long.parseLong(a[2]), Long.parseLong(a[3]), TimeUnit.MILLISECONDS);
            case "release" -> release(a[0], a[1], a[2]);
            case "parked" -> parked(a[0]);
            case "turns" -> turns(Guard.of(clients, a[0], a[1], a[2]), ledger(a), Integer.parseInt(a[3]));
            default -> throw new IllegalArgumentException("no command " + command);
        };
    }

    /** Whether a thread waits for a message or the end of a TTL, and for no answer. */
    private static boolean parked(String thread) {
        return Thread.getAllStackTraces().entrySet().stream()
            .filter(e -> e.getKey().getName().equals(thread))
            .flatMap(e -> Arrays.stream(e.getValue()))
            .anyMatch(frame -> frame.getClassName().equals(Semaphore.class.getName()));
    }

    /** When the lock was held, and its token. */
    private static String lock(RLock lock, long lease) {
        long token = 0;
        if (lock instanceof RFencedLock fenced && lease <= 0) {
            token = fenced.lockAndGetToken();
        } else {
            lock.lock(lease, TimeUnit.MILLISECONDS);
        }
        return now() + " " + token;
    }

    /** When unlock was called. */
    private static long unlock(RLock lock) {
        long called = now();
        lock.unlock();
        return called;
    }

    /** When the permit was held, and its id. */
    private String acquire(String client, String name, long lease) throws InterruptedException {
        String id = clients.semaphore(client, name).acquire(lease, TimeUnit.MILLISECONDS);
        return now() + " " + id;
    }

    /** When release was called. */
    private long release(String client, String name, String id) {
        long called = now();
        clients.semaphore(client, name).release(id);
        return called;
    }

    /** The ledger of "turns client kind name n ledger-client ledger-name limit". */
    private Ledger ledger(String[] a) {
        return new Ledger(clients.get(a[4]), a[5], Integer.parseInt(a[6]));
    }

    /** Takes turns and returns the longest wait in ns. */
    private static long turns(Guard guard, Ledger ledger, int n) throws Exception {
        long longest = 0;
        for (int i = 0; i < n; i++) {
            long start = System.nanoTime();
            long fence = guard.enter();
            longest = Math.max(longest, System.nanoTime() - start);
            try {
                ledger.visit(guard.sharing(), fence);
            } finally {
                guard.leave();
            }
        }
        return longest;
    }

    private static long now() {
        Instant t = Instant.now();
        return t.getEpochSecond() * 1_000_000_000L + t.getNano();
    }
}
