package distlock;

import java.time.Duration;

/**
 * How a lock is taken.
 *
 * @param ttl how long the lock outlives this process if it dies
 * @param patience for how long to wait: zero is one try, null is for ever
 * @param mode exclusive, write or read
 * @param limit a semaphore's number of permits; 0 for other locks
 */
public record Options(Duration ttl, Duration patience, String mode, int limit) {
    /** Checks the TTL. */
    public Options {
        if (ttl.isNegative() || ttl.isZero()) {
            throw new IllegalArgumentException("ttl is " + ttl + ": want more than 0");
        }
        mode = limit > 0 ? "counted" : mode;
    }

    /** Returns an exclusive lock with a TTL of 30 s, which is waited for without end. */
    public static Options defaults() {
        return new Options(Duration.ofSeconds(30), null, "exclusive", 0);
    }

    /** Returns these options with another TTL. */
    public Options withTtl(Duration d) {
        return new Options(d, patience, mode, limit);
    }

    /** Returns these options with another wait. */
    public Options withWait(Duration d) {
        return new Options(ttl, d, mode, limit);
    }

    /** Returns these options with another mode. */
    public Options withMode(String m) {
        return new Options(ttl, patience, m, limit);
    }

    /** Returns the options of a semaphore with so many permits. */
    public Options withLimit(int permits) {
        return new Options(ttl, patience, mode, permits);
    }

    /** How long before the end of the TTL a lease is lost: for clocks of different speed, and time to stop. */
    long margin() {
        return Math.min(ttl.toNanos() / 10, Duration.ofSeconds(1).toNanos());
    }

    /** How long one request may take, beside the time that it waits for the lock. */
    long timeout() {
        return Math.min(ttl.toNanos() / 3, Duration.ofSeconds(5).toNanos());
    }

    /** The TTL in milliseconds, rounded up. */
    long millis() {
        return ttl.plusNanos(999_999).toMillis();
    }
}
