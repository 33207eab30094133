package distlock.interop;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.KeeperException;

/**
 * Curator's clients by the names that the test gave them, and their locks. Curator's locks
 * are objects that threads share: what one object has, another does not.
 */
final class Clients {
    private final Map<String, CuratorFramework> byName = new ConcurrentHashMap<>();
    private final Map<String, CompletableFuture<Long>> lost = new ConcurrentHashMap<>();
    private final Map<List<String>, Object> locks = new ConcurrentHashMap<>();
    private final Map<List<String>, CompletableFuture<Long>> asked = new ConcurrentHashMap<>();

    /** Connects to servers, with a session of so many ms. */
    String connect(String name, String addresses, int session) throws InterruptedException {
        var client = CuratorFrameworkFactory.newClient(addresses, session, 10_000, new ExponentialBackoffRetry(100, 5));
        var whenLost = new CompletableFuture<Long>();
        client.getConnectionStateListenable().addListener((c, state) -> {
            if (state == ConnectionState.LOST) {
                whenLost.complete(Peer.now());
            }
        });
        client.start();
        if (!client.blockUntilConnected(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not connected to " + addresses);
        }
        lost.put(name, whenLost);
        byName.put(name, client);
        return name;
    }

    String close(String name) {
        byName.remove(name).close();
        return "";
    }

    CuratorFramework get(String name) {
        return byName.get(name);
    }

    /** When the client was told that its session is lost; waits for it. */
    long lost(String name) throws Exception {
        return lost.get(name).get();
    }

    /** The children of a path, none if there is no such. */
    List<String> nodes(String client, String path) throws Exception {
        try {
            return get(client).getChildren().forPath(path);
        } catch (KeeperException.NoNodeException e) {
            return List.of();
        }
    }

    /** Deletes a node and returns those beside it. */
    List<String> delete(String client, String path) throws Exception {
        get(client).delete().forPath(path);
        return nodes(client, path.substring(0, path.lastIndexOf('/')));
    }

    /**
     * A lock of a kind. A "multi" has names with commas between, a "permit-3" is one of three.
     */
    InterProcessLock lock(String client, String kind, String name) {
        String[] words = kind.split("-");
        return switch (words[0]) {
            case "mutex" -> mutex(client, name);
            case "read" -> readWrite(client, name).readLock();
            case "write" -> readWrite(client, name).writeLock();
            case "multi" -> (InterProcessLock) kept(client, kind, name,
                () -> new InterProcessMultiLock(get(client), Arrays.stream(name.split(",")).map(part -> "/" + part).toList()));
            case "lone" -> (InterProcessLock) kept(client, kind, name, () -> new InterProcessSemaphoreMutex(get(client), "/" + name));
            case "permit" -> (InterProcessLock) kept(client, kind, name,
                () -> new Permits(new InterProcessSemaphoreV2(get(client), "/" + name, Integer.parseInt(words[1]))));
            default -> throw new IllegalArgumentException("no lock of kind " + kind);
        };
    }

    InterProcessMutex mutex(String client, String name) {
        return (InterProcessMutex) kept(client, "mutex", name, () -> new InterProcessMutex(get(client), "/" + name));
    }

    private InterProcessReadWriteLock readWrite(String client, String name) {
        return (InterProcessReadWriteLock) kept(client, "rw", name, () -> new InterProcessReadWriteLock(get(client), "/" + name));
    }

    private Object kept(String client, String kind, String name, java.util.function.Supplier<Object> make) {
        return locks.computeIfAbsent(List.of(client, kind, name), key -> make.get());
    }

    /** Agrees to be asked for a mutex that is going to be taken. */
    String agree(String client, String name) {
        var when = new CompletableFuture<Long>();
        asked.put(List.of(client, name), when);
        mutex(client, name).makeRevocable(lock -> when.complete(Peer.now()));
        return "";
    }

    /** When a mutex was asked for; waits for it. */
    long asked(String client, String name) throws Exception {
        return asked.get(List.of(client, name)).get();
    }
}
