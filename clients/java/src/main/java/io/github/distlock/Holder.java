package io.github.distlock;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** A holder of a lock, as far as it is known. */
public final class Holder {
    private final String mode;
    private final long fence;
    private final Map<String, Object> meta;

    private Holder(String mode, long fence, Map<String, Object> meta) {
        this.mode = mode;
        this.fence = fence;
        this.meta = meta;
    }

    /** Reads the holders in an answer. */
    @SuppressWarnings("unchecked")
    static List<Holder> of(Map<String, Object> answer) {
        var all = new ArrayList<Holder>();
        Object list = answer.get("holders");
        for (Object o : list instanceof List ? (List<?>) list : List.of()) {
            if (o instanceof Map) {
                Object mode = ((Map<?, ?>) o).get("mode"), fence = ((Map<?, ?>) o).get("fence"), meta = ((Map<?, ?>) o).get("meta");
                boolean isFence = fence instanceof String && ((String) fence).matches("\\d{1,18}|[1-8]\\d{18}");
                all.add(new Holder(mode instanceof String ? (String) mode : "", isFence ? Long.parseLong((String) fence) : 0,
                        meta instanceof Map ? (Map<String, Object>) meta : Map.of()));
            }
        }
        return all;
    }

    /**
     * Returns how it holds.
     *
     * @return exclusive, write, read or counted; empty if that is not known
     */
    public String mode() {
        return mode;
    }

    /**
     * Returns its fence.
     *
     * @return the fence, or 0 if that is not known
     */
    public long fence() {
        return fence;
    }

    /**
     * Returns what the holder tells of itself: program, pid and host, and what its options add.
     *
     * @return texts by name; others may have put anything into it
     */
    public Map<String, Object> meta() {
        return meta;
    }

    /** Returns the program, its process and its host. */
    @Override
    public String toString() {
        String text = String.format("%s (pid %s on %s)", meta.getOrDefault("program", "?"), meta.getOrDefault("pid", "?"),
                meta.getOrDefault("host", "?"));
        return text.replaceAll("\\p{C}", "?"); // others may have put anything into it
    }
}
