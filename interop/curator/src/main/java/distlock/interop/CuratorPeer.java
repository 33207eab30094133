package distlock.interop;

import java.io.IOException;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.Revoker;

/** A Java process with Curator. The lock called a/b is /a/b. */
public final class CuratorPeer extends Peer {
    private final Clients clients = new Clients();

    public static void main(String[] args) throws IOException {
        new CuratorPeer().serve();
    }

    @Override
    Object run(String command, String[] a) throws Exception {
        return switch (command) {
            case "version" -> version();
            case "connect" -> clients.connect(a[0], a[1], Integer.parseInt(a[2]));
            case "close" -> clients.close(a[0]);
            case "lost" -> clients.lost(a[0]);
            case "lock" -> lock(clients.lock(a[0], a[1], a[2]));
            case "try" -> clients.lock(a[0], a[1], a[2]).acquire(Long.parseLong(a[3]), TimeUnit.MILLISECONDS);
            case "unlock" -> unlock(clients.lock(a[0], a[1], a[2]));
            case "mine" -> clients.lock(a[0], a[1], a[2]).isAcquiredInThisProcess();
            case "nodes" -> words(clients.nodes(a[0], a[1]));
            case "delete" -> words(clients.delete(a[0], a[1]));
            case "participants" -> words(clients.mutex(a[0], a[1]).getParticipantNodes());
            case "agree" -> clients.agree(a[0], a[1]);
            case "asked" -> clients.asked(a[0], a[1]);
            case "ask" -> ask(a[0], a[1]);
            default -> throw unknown(command);
        };
    }

    @Override
    Guard guard(String client, String kind, String name) {
        return new Locked(clients.lock(client, kind, name), switch (kind.split("-")[0]) {
            case "read" -> "reading";
            case "permit" -> "counted";
            default -> "alone";
        });
    }

    /** Curator waits for news in its recipes themselves, for answers further below. */
    @Override
    boolean waits(StackTraceElement[] calls) {
        int i = 0;
        while (i < calls.length && calls[i].getClassName().equals("java.lang.Object")) {
            i++;
        }
        return i > 0 && i < calls.length && calls[i].getClassName().startsWith(InterProcessMutex.class.getPackageName());
    }

    /** Curator's version, as its jar has it. */
    private static String version() throws IOException {
        var properties = new Properties();
        try (var in = InterProcessMutex.class.getResourceAsStream("/META-INF/maven/org.apache.curator/curator-recipes/pom.properties")) {
            properties.load(in);
        }
        return properties.getProperty("version");
    }

    /** When the lock was held. */
    private static long lock(InterProcessLock lock) throws Exception {
        lock.acquire();
        return now();
    }

    /** When release was called. */
    private static long unlock(InterProcessLock lock) throws Exception {
        long called = now();
        lock.release();
        return called;
    }

    /** Asks the holder whose node this is for its lock; when it was asked. */
    private long ask(String client, String path) throws Exception {
        long called = now();
        Revoker.attemptRevoke(clients.get(client), path);
        return called;
    }

    private static String words(Collection<String> all) {
        return String.join(" ", all.isEmpty() ? List.of("-") : all);
    }

    private record Locked(InterProcessLock lock, String sharing) implements Guard {
        @Override
        public long enter() throws Exception {
            lock.acquire();
            return 0;
        }

        @Override
        public void leave() throws Exception {
            lock.release();
        }
    }
}
