package distlock;

import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** The base of all errors here. None contains a token or an owner. */
public abstract class DistlockException extends RuntimeException {
    private DistlockException(String message) {
        super(message);
    }

    /** Others hold the lock. */
    public static final class Held extends DistlockException {
        private final transient List<Holder> holders;

        Held(String name, List<Holder> holders) {
            super("\"" + name + "\" is held by " + (holders.isEmpty() ? "another"
                    : holders.stream().map(Holder::toString).collect(Collectors.joining(", "))));
            this.holders = holders;
        }

        /** Returns what is known of the holders. */
        public List<Holder> holders() {
            return holders;
        }
    }

    /** The lock was lost: others may hold it now. */
    public static final class Lost extends DistlockException {
        Lost(String message) {
            super(message);
        }
    }

    /** The server does not accept the request, or its backend can't do that. */
    public static final class Invalid extends DistlockException {
        Invalid(String message) {
            super(message);
        }
    }

    /** The token is missing, wrong, or has no right to this lock. */
    public static final class Denied extends DistlockException {
        Denied(String message) {
            super(message);
        }
    }

    /** No server gave an answer in time. The outcome is not known, but the lock is not used. */
    public static final class Unavailable extends DistlockException {
        Unavailable(String message) {
            super(message);
        }
    }

    /** A holder of a lock. What is not known is empty, and the fence is 0. */
    public record Holder(String mode, long fence, Map<String, Object> meta) {
        /** Returns the program, its process and its host. */
        @Override
        public String toString() {
            Object program = meta.getOrDefault("program", "?"), pid = meta.getOrDefault("pid", "?");
            String text = "%s (pid %s on %s)".formatted(program, pid, meta.getOrDefault("host", "?"));
            return text.replaceAll("\\p{C}", "?"); // others may have put anything into it
        }
    }
}
