package distlock.interop;

import java.io.IOException;
import java.util.Arrays;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;

/** A Java process with Redisson. */
public final class RedissonPeer extends Peer {
    private final Clients clients = new Clients();

    public static void main(String[] args) throws IOException {
        new RedissonPeer().serve();
    }

    @Override
    Object run(String command, String[] a) throws Exception {
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
            default -> throw unknown(command);
        };
    }

    @Override
    Guard guard(String client, String kind, String name) {
        return Guards.of(clients, client, kind, name);
    }

    @Override
    boolean waits(StackTraceElement[] calls) {
        return Arrays.stream(calls).anyMatch(call -> call.getClassName().equals(Semaphore.class.getName()));
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
}
