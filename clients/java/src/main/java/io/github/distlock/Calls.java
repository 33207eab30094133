package io.github.distlock;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;

/**
 * A connection that is no longer HTTP's: each acquire and release is a line, and is answered by a line as soon as it is over, so that
 * a wait costs no connection. Only the loop's thread uses it.
 */
final class Calls {
    static final int MOST_BYTES = 60 << 10; // of a line; a server takes a little more

    private static final int MOST = 1024, ACQUIRES = 960; // that a server takes at once; the rest are for releases
    private static final int MOST_ANSWER = 1 << 20;
    private static final long IDLE = TimeUnit.SECONDS.toNanos(30); // less than what proxies and servers have

    private final Server server;
    private final Connection connection;
    private final Loop loop;
    private final Api api;
    private final Map<Long, Call> underWay = new HashMap<>(); // by index; null: nobody waits for its answer any more
    private final StringBuilder out = new StringBuilder(); // ASCII
    private byte[] in = new byte[4096];
    private int length; // of what is in in
    private long index; // of the last call
    private long lines; // that were read
    private long used = System.nanoTime();
    private boolean flushing;
    private boolean retired; // it gets no more calls

    /** Takes over a connection. */
    Calls(Server server, Connection connection, Loop loop, Api api) {
        this.server = server;
        this.connection = connection;
        this.loop = loop;
        this.api = api;
    }

    /** Asks for a line, for which the server does nothing, before there are calls: a proxy on the way may keep lines back. */
    void begin(byte[] rest) {
        underWay.put(++index, null);
        out.append("{\"index\":1}\n");
        connection.become(this);
        flush();
        received(rest, rest.length);
        loop.after(IDLE, this::rest);
    }

    boolean hasRoom(Call c) {
        return underWay.size() < (c.sort == Call.Sort.WAIT || c.path.equals(Call.ACQUIRE) ? ACQUIRES : MOST);
    }

    /** Reports whether it has had no line yet, and is not over. */
    boolean isSilent() {
        return lines == 0 && !retired;
    }

    void send(Call c) {
        c.calls = this;
        c.sent = true;
        c.index = ++index;
        c.lines = lines;
        used = c.begun;
        underWay.put(c.index, c);
        add("{\"index\":" + index + ",\"" + c.path.substring("/v1/".length()) + "\":" + c.body + "}\n");
    }

    /** Ends the wait for an answer. Reports whether no line at all has come since the call. */
    boolean leave(Call c) {
        c.calls = null;
        underWay.put(c.index, null);
        add("{\"index\":" + c.index + ",\"leave\":true}\n");
        return c.lines == lines;
    }

    private void add(String line) {
        out.append(line);
        if (!flushing) {
            flushing = true;
            loop.last(this::flush); // calls that come together are sent together
        }
    }

    /** Sends the lines that wait, unless earlier ones are still being sent. */
    void flush() {
        flushing = false;
        if (out.length() > 0 && connection.isSent()) {
            byte[] text = out.toString().getBytes(StandardCharsets.ISO_8859_1);
            out.setLength(0);
            connection.send(text);
        }
    }

    /** Takes bytes of answers. */
    void received(byte[] more, int n) {
        if (length + n > in.length) {
            in = Arrays.copyOf(in, Math.max(length + n, 2 * in.length));
        }
        System.arraycopy(more, 0, in, length, n);
        int start = 0, end = length + n;
        for (int i = length; i < end; i++) {
            if (in[i] == '\n') {
                try {
                    line(Json.object(new String(in, start, i - start, StandardCharsets.UTF_8)));
                } catch (IllegalArgumentException | ClassCastException | NullPointerException e) {
                    end("the answer is malformed");
                    return;
                }
                start = i + 1;
            }
        }
        System.arraycopy(in, start, in, 0, length = end - start);
        if (length > MOST_ANSWER) {
            end("the answer is too long");
        }
    }

    private void line(Map<String, Object> line) {
        Long of = (Long) line.get("index");
        String outcome = Objects.requireNonNull((String) line.get("outcome"));
        server.hears();
        if (lines++ == 0) {
            api.opened(this, server, true);
        }
        if (of == 0) { // the server drains, say
            retire();
            return;
        }
        if (!underWay.containsKey(of)) {
            throw new IllegalArgumentException("there is no such call");
        }
        Call c = underWay.get(of);
        Answer a = c == null ? null : Answer.of(c, outcome, line);
        underWay.remove(of);
        if (c != null) {
            c.calls = null;
            api.answered(c, a, this);
        }
        closeUnused();
    }

    /** Lets it get no more calls, and ends it once none is under way, or none can be any more. */
    void retire() {
        if (!retired) {
            retired = true;
            server.streams.remove(this);
            loop.after(IDLE, () -> end("no answer in time"));
        }
        closeUnused();
    }

    private void closeUnused() {
        if (retired && underWay.isEmpty()) {
            connection.close();
        }
    }

    private void rest() {
        long left = used + IDLE - System.nanoTime();
        if (!retired && (left > 0 || !underWay.isEmpty())) {
            loop.after(left > 0 ? left : IDLE, this::rest);
        } else if (!retired) {
            retire();
        }
    }

    /** Ends it, and what is under way, of which nobody knows what became. */
    void end(String why) {
        if (isSilent()) {
            api.opened(this, server, false);
        }
        retire();
        connection.close();
        var calls = new ArrayList<>(underWay.values());
        underWay.clear();
        for (Call c : calls) {
            if (c != null) {
                c.calls = null;
                api.fail(c, why);
            }
        }
    }
}
