package distlock.interop;

import java.io.IOException;

/**
 * Notices visitors who should not be there together. Go's checker does the same with the
 * same keys. It is for one thread.
 */
final class Checker implements AutoCloseable {
    private final Redis redis;
    private final String name;
    private final int limit;

    Checker(Redis redis, String name, int limit) {
        this.redis = redis;
        this.name = name;
        this.limit = limit;
    }

    void visit(String sharing, long token) throws IOException, InterruptedException {
        switch (sharing) {
            case "alone" -> alone(token);
            case "reading" -> reading();
            default -> counted();
        }
    }

    private void alone(long token) throws IOException {
        expect(add("inside", 1) == 1, "another was inside");
        expect(number("readers") == 0, "a reader was inside");
        long before = number("count");
        if (token > 0) {
            long last = number("fence");
            expect(token > last, "token " + token + " came after " + last);
            set("fence", token);
        }
        if (!"java".equals(redis.call("GETSET", key("side"), "java"))) {
            add("turnovers", 1);
        }
        set("count", before + 1);
        add("inside", -1);
    }

    private void reading() throws IOException {
        if (add("readers", 1) > 1) {
            add("together", 1);
        }
        expect(number("inside") == 0, "a writer was inside");
        expect(number("count") == number("count"), "the count changed while it was read");
        add("readers", -1);
    }

    private void counted() throws IOException, InterruptedException {
        long n = add("inside", 1);
        expect(n <= limit, n + " were inside");
        if (n > 1) {
            add("together", 1);
        }
        Thread.sleep(5); // that some meet who may
        add("count", 1);
        add("inside", -1);
    }

    private void expect(boolean kept, String otherwise) throws IOException {
        if (!kept) {
            redis.call("RPUSH", key("complaints"), "java: " + otherwise);
        }
    }

    private long add(String what, long n) throws IOException {
        return Long.parseLong(redis.call("INCRBY", key(what), Long.toString(n)));
    }

    private long number(String what) throws IOException {
        String n = redis.call("GET", key(what));
        return n == null ? 0 : Long.parseLong(n);
    }

    private void set(String what, long n) throws IOException {
        redis.call("SET", key(what), Long.toString(n));
    }

    private String key(String what) {
        return name + ":" + what;
    }

    @Override
    public void close() throws IOException {
        redis.close();
    }
}
