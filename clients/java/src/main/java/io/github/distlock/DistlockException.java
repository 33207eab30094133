package io.github.distlock;

import java.util.List;
import java.util.stream.Collectors;

/** The base of all errors here. None contains a token or the owner of a hold. */
public abstract class DistlockException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private DistlockException(String message) {
        super(message);
    }

    /** Others hold the lock, and the wait is over. */
    public static final class Held extends DistlockException {
        private static final long serialVersionUID = 1;
        private final transient List<Holder> holders;

        Held(String name, List<Holder> holders) {
            super("\"" + name + "\" is held by " + (holders.isEmpty() ? "another"
                    : holders.stream().map(Holder::toString).collect(Collectors.joining(", "))));
            this.holders = holders;
        }

        /**
         * Returns what is known of the holders.
         *
         * @return the holders; empty if nothing is known
         */
        public List<Holder> holders() {
            return holders == null ? List.of() : holders;
        }
    }

    /** The lock was lost, or released: others may hold it now. */
    public static final class Lost extends DistlockException {
        private static final long serialVersionUID = 1;

        Lost(String message) {
            super(message);
        }
    }

    /** The server does not accept the request, or its backend can't do that. */
    public static final class Invalid extends DistlockException {
        private static final long serialVersionUID = 1;

        Invalid(String message) {
            super(message);
        }
    }

    /** The token is missing, wrong, or has no right to this lock. */
    public static final class Denied extends DistlockException {
        private static final long serialVersionUID = 1;

        Denied(String message) {
            super(message);
        }
    }

    /** No server gave an answer in time, or one is before another backend. The outcome is not known, but the lock is not used. */
    public static final class Unavailable extends DistlockException {
        private static final long serialVersionUID = 1;

        Unavailable(String message) {
            super(message);
        }
    }
}
