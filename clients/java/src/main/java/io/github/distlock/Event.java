package io.github.distlock;

/** Something that happened to a lock, for metrics. See {@link LocksBuilder#onEvent}. */
public final class Event {
    /** What happened. */
    public enum Kind {
        /** The lock was taken. The seconds are those since the call. */
        TAKEN,
        /** Others held the lock when it was wanted. The seconds are those of the wait, which TAKEN or FAILED ends. */
        WAITED,
        /** The lock was not taken: it is held, no server answers, the request is refused, or the caller has given up. The seconds are those since the call. */
        FAILED,
        /** The lock was released. The seconds are those of the hold. */
        RELEASED,
        /** The lock was lost. The seconds are those of the hold. */
        LOST,
        /** The lease was forgotten: its user dropped it without a release. The lock is released. The seconds are those of the hold. */
        FORGOTTEN
    }

    private final Kind kind;
    private final String name;
    private final double seconds;

    Event(Kind kind, String name, long nanos) {
        this.kind = kind;
        this.name = name;
        this.seconds = nanos / 1e9;
    }

    /**
     * Returns what happened.
     *
     * @return the kind
     */
    public Kind kind() {
        return kind;
    }

    /**
     * Returns the lock's name.
     *
     * @return the name
     */
    public String name() {
        return name;
    }

    /**
     * Returns how long it took, or how long the lock was held.
     *
     * @return seconds, as the kind says
     */
    public double seconds() {
        return seconds;
    }

    /** Returns the kind, the name and the seconds. */
    @Override
    public String toString() {
        return kind + " \"" + name + "\" " + seconds + " s";
    }
}
