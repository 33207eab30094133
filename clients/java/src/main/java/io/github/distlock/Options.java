package io.github.distlock;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/**
 * How a lock is taken. It is immutable: each method returns other options.
 *
 * <pre>{@code
 * static final Options NIGHTLY = Options.defaults().ttl(Duration.ofMinutes(1)).wait(Duration.ofSeconds(10));
 * }</pre>
 *
 * <p>Waiters stand in the queue of the server's backend where it has one, so locks are fair there without an option.
 */
public final class Options {
    private static final Options DEFAULTS = new Options();
    private static final Set<String> MODES = Set.of("exclusive", "read", "write");
    private static final Duration LEAST = Duration.ofMillis(100), MOST = Duration.ofHours(1); // of a TTL that is meant

    private Duration ttl = Duration.ofSeconds(30);
    private Duration wait; // null is for ever
    private String mode = "exclusive";
    private int limit;
    private boolean renew = true;
    private boolean reentrant;
    private Duration minHold = Duration.ZERO;
    private Duration maxHold; // null is for ever
    private Map<String, String> meta = Map.of();
    private Runnable onLost;

    private Options() {}

    private Options(Options o) {
        ttl = o.ttl;
        wait = o.wait;
        mode = o.mode;
        limit = o.limit;
        renew = o.renew;
        reentrant = o.reentrant;
        minHold = o.minHold;
        maxHold = o.maxHold;
        meta = o.meta;
        onLost = o.onLost;
    }

    /**
     * Returns the options of an exclusive lock with a TTL of 30 s, which is renewed, and is waited for without end.
     *
     * @return the options
     */
    public static Options defaults() {
        return DEFAULTS;
    }

    /**
     * Sets the TTL: for how long the lock outlives a process that died.
     *
     * @param ttl at least 100 ms, and at most an hour for a lease that is renewed
     * @return other options
     */
    public Options ttl(Duration ttl) {
        var o = new Options(this);
        o.ttl = positive("ttl", ttl);
        return o;
    }

    /**
     * Sets for how long to wait for the lock.
     *
     * @param wait the longest wait: zero is one try, null is for ever
     * @return other options
     */
    public Options wait(Duration wait) {
        if (wait != null && wait.isNegative()) {
            throw new IllegalArgumentException("wait is " + wait + ": want zero or more, or null to wait for ever");
        }
        var o = new Options(this);
        o.wait = wait;
        return o;
    }

    /**
     * Sets the kind of lock: readers share it, and exclude writers.
     *
     * @param mode "exclusive", "read" or "write"
     * @return other options
     */
    public Options mode(String mode) {
        var o = new Options(this);
        o.mode = Objects.requireNonNull(mode, "mode");
        return o.wantOneKind();
    }

    /**
     * Makes the lock a semaphore. All its users give the same number.
     *
     * @param permits how many may hold at once, at least 1
     * @return other options
     */
    public Options limit(int permits) {
        if (permits < 1) {
            throw new IllegalArgumentException("limit is " + permits + ": want at least 1");
        }
        var o = new Options(this);
        o.limit = permits;
        return o.wantOneKind();
    }

    /**
     * Sets whether the lease is renewed. One that is not ends with its TTL, unless it is extended.
     *
     * @param renew true by default
     * @return other options
     */
    public Options renew(boolean renew) {
        var o = new Options(this);
        o.renew = renew;
        return o;
    }

    /**
     * Lets a thread that holds the lock take it again at once. The lock is released when each of its leases is. All the calls must
     * have this option.
     *
     * @param reentrant false by default: the thread would wait for itself
     * @return other options
     */
    public Options reentrant(boolean reentrant) {
        var o = new Options(this);
        o.reentrant = reentrant;
        return o;
    }

    /**
     * Keeps the lock for a time, counted from its taking, even if it is released sooner. A job that runs on several hosts, whose
     * clocks differ, so runs once. The release returns at once, and the lock goes on after the end of the process, also of one that was killed.
     *
     * @param minHold zero by default
     * @return other options
     */
    public Options minHold(Duration minHold) {
        if (Objects.requireNonNull(minHold, "minHold").isNegative()) {
            throw new IllegalArgumentException("minHold is " + minHold + ": want zero or more");
        }
        var o = new Options(this);
        o.minHold = minHold;
        return o;
    }

    /**
     * Ends the lease after a time, counted from its taking, as one that is lost: nothing renews the lock of work that hangs.
     *
     * @param maxHold more than zero
     * @return other options
     */
    public Options maxHold(Duration maxHold) {
        var o = new Options(this);
        o.maxHold = positive("maxHold", maxHold);
        return o;
    }

    /**
     * Adds to what others see of the holder: host, pid and program by default.
     *
     * @param key the name of the detail
     * @param value its text; not a secret
     * @return other options
     */
    public Options meta(String key, String value) {
        var o = new Options(this);
        o.meta = new LinkedHashMap<>(meta);
        o.meta.put(Objects.requireNonNull(key, "key"), Objects.requireNonNull(value, "value"));
        return o;
    }

    /**
     * Sets what is run when the lease is lost or forgotten, in a thread of its own. See {@link Lease#lost()}.
     *
     * @param action for example {@code worker::interrupt}
     * @return other options
     */
    public Options onLost(Runnable action) {
        var o = new Options(this);
        o.onLost = action;
        return o;
    }

    private Options wantOneKind() {
        if (!MODES.contains(mode) || limit > 0 && !mode.equals("exclusive")) {
            throw new IllegalArgumentException("mode is " + mode + (limit > 0 ? " and limit is " + limit : "")
                    + ": want exclusive, write or read, or a limit, which makes a semaphore");
        }
        return this;
    }

    static Duration positive(String what, Duration d) {
        if (Objects.requireNonNull(d, what).isNegative() || d.isZero()) {
            throw new IllegalArgumentException(what + " is " + d + ": want more than zero");
        }
        return d;
    }

    /** Throws for a time that can't be meant, which depends on the other options. */
    void check() {
        if (ttl.compareTo(LEAST) < 0) {
            throw new IllegalArgumentException("ttl is " + ttl + ", " + ttl.toMillis() + " ms: want at least 100 ms; Duration.ofSeconds("
                    + Math.max(1, ttl.toMillis()) + ") are seconds");
        }
        if (renew && ttl.compareTo(MOST) > 0) {
            throw new IllegalArgumentException("ttl is " + ttl + ", " + ttl.getSeconds() + " s: want at most an hour for a lease that is renewed; Duration.ofMillis("
                    + ttl.getSeconds() + ") are milliseconds");
        }
        if (minHold() > maxHold()) {
            throw new IllegalArgumentException("minHold is " + minHold + ": want no more than maxHold, " + maxHold);
        }
        if (!renew && minHold.compareTo(ttl) > 0) {
            throw new IllegalArgumentException("minHold is " + minHold + ": want no more than the ttl of a lease that is not renewed, " + ttl);
        }
    }

    /** For how long a server is to keep the lock when it grants it: a minimum hold outlives the process. */
    long life() {
        return Math.max(ttl(), minHold());
    }

    long ttl() {
        return nanos(ttl);
    }

    /** The longest wait in ns. */
    long patience() {
        return wait == null ? Long.MAX_VALUE : nanos(wait);
    }

    String mode() {
        return limit > 0 ? "counted" : mode;
    }

    int limit() {
        return limit;
    }

    boolean renew() {
        return renew;
    }

    boolean reentrant() {
        return reentrant;
    }

    long minHold() {
        return nanos(minHold);
    }

    long maxHold() {
        return maxHold == null ? Long.MAX_VALUE / 4 : nanos(maxHold);
    }

    Map<String, String> meta() {
        return meta;
    }

    Runnable onLost() {
        return onLost;
    }

    /** How long before the end of a TTL a lease is lost: for clocks of different speed, and time to stop. */
    static long margin(long ttl) {
        return Math.min(ttl / 10, 1_000_000_000L);
    }

    /** How long one request may take, beside the time that it waits for the lock. */
    long timeout() {
        return Math.min(ttl() / 3, 5_000_000_000L);
    }

    /** A time in ns, which can be added to one of System.nanoTime: 73 years at most. */
    static long nanos(Duration d) {
        long most = Long.MAX_VALUE / 4;
        return d.compareTo(Duration.ofNanos(most)) > 0 ? most : d.toNanos();
    }

    /** A time in ms, rounded up. */
    static long millis(long nanos) {
        return nanos / 1_000_000 + (nanos % 1_000_000 == 0 ? 0 : 1);
    }
}
