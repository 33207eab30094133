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

/**
 * A Java process with another library, driven in lines. A call is "id thread command
 * arguments…" on stdin, its answer "id ok words…" or "id error exception" on stdout,
 * whenever it is there. Calls of one thread run in order, on that thread, which the
 * library knows as the owner of locks. The process ends with its stdin. Times are ns since 1970.
 */
abstract class Peer {
    private final Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
    private final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    /** What the library is asked to do. */
    abstract Object run(String command, String[] args) throws Exception;

    /** A lock that takes turns. */
    abstract Guard guard(String client, String kind, String name) throws Exception;

    /** Whether a thread in these calls waits for news of a lock, and for no answer. */
    abstract boolean waits(StackTraceElement[] calls);

    final void serve() throws IOException {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[1], name -> Executors.newSingleThreadExecutor(run -> new Thread(run, name)))
                .execute(() -> answer(words[0], words[2], Arrays.copyOfRange(words, 3, words.length)));
        }
        Runtime.getRuntime().halt(0);
    }

    private void answer(String id, String command, String[] args) {
        String reply;
        try {
            reply = "ok " + dispatch(command, args);
        } catch (Throwable e) {
            reply = "error " + describe(e);
        }
        synchronized (out) {
            out.println(id + " " + reply);
            out.flush();
        }
    }

    private Object dispatch(String command, String[] a) throws Exception {
        return switch (command) {
            case "parked" -> parked(a[0]);
            case "turns" -> turns(a);
            default -> run(command, a);
        };
    }

    static IllegalArgumentException unknown(String command) {
        return new IllegalArgumentException("no command " + command);
    }

    /** One line with the exception and its causes. */
    private static String describe(Throwable e) {
        String line = e.getClass().getSimpleName() + ": " + String.valueOf(e.getMessage()).replace('\n', ' ');
        return e.getCause() == null ? line : line + " by " + describe(e.getCause());
    }

    /** Whether a thread waits for news. */
    private boolean parked(String thread) {
        return Thread.getAllStackTraces().entrySet().stream()
            .anyMatch(e -> e.getKey().getName().equals(thread) && waits(e.getValue()));
    }

    /** "turns client kind name n host port checker limit" with the checker in that Redis. */
    private long turns(String[] a) throws Exception {
        Guard guard = a[1].startsWith("nothing-") ? new Guard.Nothing(a[1].substring("nothing-".length())) : guard(a[0], a[1], a[2]);
        try (var checker = new Checker(new Redis(a[4], Integer.parseInt(a[5])), a[6], Integer.parseInt(a[7]))) {
            return turns(guard, checker, Integer.parseInt(a[3]));
        }
    }

    /** Takes turns and returns the longest wait in ns. */
    private static long turns(Guard guard, Checker checker, int n) throws Exception {
        long longest = 0;
        for (int i = 0; i < n; i++) {
            long start = System.nanoTime();
            long fence = guard.enter();
            longest = Math.max(longest, System.nanoTime() - start);
            try {
                checker.visit(guard.sharing(), fence);
            } finally {
                guard.leave();
            }
        }
        return longest;
    }

    static long now() {
        Instant t = Instant.now();
        return t.getEpochSecond() * 1_000_000_000L + t.getNano();
    }
}
