package io.github.distlock;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;
import java.util.function.LongFunction;

/** A request to whichever server is in use, and what becomes of it. Only the loop's thread uses it. */
final class Call {
    static final String ACQUIRE = "/v1/acquire", RELEASE = "/v1/release", CALLS = "/v1/calls";

    /** How it is bounded. */
    enum Sort {
        /** It is answered soon. */
        SHORT,
        /** It waits for a lock at the server. */
        WAIT,
        /** It is answered soon, and no bound on connections holds it up: a renewal. */
        URGENT
    }

    final Sort sort;
    final String method;
    final String path;
    final long until; // when the wait for the lock is over
    final long timeout; // ns for the rest
    final Consumer<Answer> done;
    private final LongFunction<String> text; // of the body, by how many ns the server may wait for the lock

    final String id = Long.toHexString(ThreadLocalRandom.current().nextLong());
    String body = "";
    long wait; // ns that the server may wait for the lock
    Server server;
    long begun; // when it was sent, or a little earlier
    Loop.Timer timer;
    boolean over;
    boolean sent;

    // Of a request.
    Connection connection;
    boolean counted; // it has one of the connections
    String token; // that was sent
    boolean again; // it was sent again with another token
    boolean answered; // by somebody who may do so each time
    byte[] rest; // what followed the answer that made the connection one of calls

    // Of a line.
    Calls calls; // null: it is none, or it is over
    long index;
    long lines; // that were read before it

    private Call(Sort sort, String method, String path, LongFunction<String> text, long until, long timeout, Consumer<Answer> done) {
        this.sort = sort;
        this.method = method;
        this.path = path;
        this.text = text;
        this.until = until;
        this.timeout = timeout;
        this.done = done;
    }

    /** Makes a call that changes something. */
    Call(Sort sort, String path, Object body, long timeout, Consumer<Answer> done) {
        this(sort, "POST", path, wait -> Json.write(body), 0, timeout, done);
    }

    /** Makes a call that reads. */
    Call(Sort sort, String path, long timeout, Consumer<Answer> done) {
        this(sort, "GET", path, wait -> "", 0, timeout, done);
    }

    /** Makes a call that takes a lock, or waits for it until a time of System.nanoTime. */
    static Call acquire(LongFunction<String> text, boolean waits, long until, long timeout, Consumer<Answer> done) {
        return new Call(waits ? Sort.WAIT : Sort.SHORT, "POST", ACQUIRE, text, until, timeout, done);
    }

    /** Begins it at a server, where it may wait for so long. */
    void begin(Server s, long mostWait) {
        server = s;
        begun = System.nanoTime();
        wait = sort == Sort.WAIT ? Math.max(0, Math.min(mostWait, until - begun)) : 0;
        body = text.apply(wait);
    }

    /** Reports whether it may be a line. */
    boolean isForLock() {
        return path.equals(ACQUIRE) || path.equals(RELEASE);
    }

    /** Returns the bytes of the request. */
    byte[] text(String backend) {
        var head = new StringBuilder(method).append(' ').append(server.path).append(path).append(" HTTP/1.1\r\nHost: ").append(server.hostHeader)
                .append("\r\nDistlock-Request: ").append(id);
        if (token != null) {
            head.append("\r\nAuthorization: Bearer ").append(token);
        }
        if (backend != null) {
            head.append("\r\nDistlock-Backend: ").append(backend);
        }
        if (path.equals(CALLS)) {
            head.append("\r\nConnection: Upgrade\r\nUpgrade: distlock-calls");
        }
        if (method.equals("POST")) {
            head.append("\r\nContent-Type: application/json\r\nContent-Length: ").append(body.length()); // it is ASCII
        }
        return head.append("\r\n\r\n").append(body).toString().getBytes(StandardCharsets.ISO_8859_1);
    }
}
