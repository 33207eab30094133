package distlock.interop;

import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;

import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.NameMapper;
import org.redisson.config.ShardedSubscriptionMode;

/** Redisson's clients by the names that the test gave them. */
final class Clients {
    private final Map<String, RedissonClient> byName = new ConcurrentHashMap<>();

    /**
     * Connects to one server ("single"); to a cluster ("cluster", or "classic-cluster"
     * without sharded pub/sub); to one of several that keep a lock by majority ("member"),
     * which is done without if it is silent. watchdog is in ms.
     */
    String connect(String name, String mode, String addresses, long watchdog, String prefix) {
        Config config = new Config();
        config.setThreads(8).setNettyThreads(4).setLockWatchdogTimeout(watchdog);
        config.setNameMapper(prefix.isEmpty() ? NameMapper.direct() : new Prefix(prefix));
        String[] urls = Stream.of(addresses.split(",")).map(a -> "redis://" + a).toArray(String[]::new);
        switch (mode) {
            case "cluster", "classic-cluster" -> config.useClusterServers().addNodeAddress(urls)
                .setMasterConnectionMinimumIdleSize(2).setSlaveConnectionMinimumIdleSize(1)
                .setShardedSubscriptionMode(mode.equals("cluster") ? ShardedSubscriptionMode.AUTO : ShardedSubscriptionMode.OFF);
            case "single" -> config.useSingleServer().setAddress(urls[0]).setConnectionMinimumIdleSize(2);
            case "member" -> config.useSingleServer().setAddress(urls[0]).setConnectionMinimumIdleSize(2)
                .setTimeout(500).setRetryAttempts(0);
            default -> throw new IllegalArgumentException("no mode " + mode);
        }
        byName.put(name, Redisson.create(config));
        return get(name).getId();
    }

    String close(String name) {
        byName.remove(name).shutdown();
        return "";
    }

    RedissonClient get(String name) {
        return byName.get(name);
    }

    /** A lock of a kind. A "multi" has names with commas between, a "red" has such clients. */
    RLock lock(String client, String kind, String name) {
        return switch (kind) {
            case "lock" -> get(client).getLock(name);
            case "fenced" -> get(client).getFencedLock(name);
            case "fair" -> get(client).getFairLock(name);
            case "read" -> get(client).getReadWriteLock(name).readLock();
            case "write" -> get(client).getReadWriteLock(name).writeLock();
            case "multi" -> get(client).getMultiLock(Arrays.stream(name.split(",")).map(get(client)::getLock).toArray(RLock[]::new));
            case "red" -> red(client, name);
            default -> throw new IllegalArgumentException("no lock of kind " + kind);
        };
    }

    @SuppressWarnings("deprecation") // Redisson gave it up; who uses it still has it.
    private RLock red(String clients, String name) {
        return new RedissonRedLock(Arrays.stream(clients.split(",")).map(c -> get(c).getLock(name)).toArray(RLock[]::new));
    }

    RPermitExpirableSemaphore semaphore(String client, String name) {
        return get(client).getPermitExpirableSemaphore(name);
    }

    /** What distlock's option Prefix does. */
    private record Prefix(String prefix) implements NameMapper {
        @Override
        public String map(String name) {
            return prefix + name;
        }

        @Override
        public String unmap(String name) {
            return name.substring(prefix.length());
        }
    }
}
