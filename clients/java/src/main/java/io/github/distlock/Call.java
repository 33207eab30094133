package io.github.distlock;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;

/** A request to whichever server is in use, and what becomes of it. Only the loop's thread uses it. */
final class Call {
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
    final byte[] body;
    final long wait; // ns that the server may wait for the lock
    final long timeout; // ns for the rest
    final Consumer<Answer> done;

    final String id = Long.toHexString(ThreadLocalRandom.current().nextLong());
    Server server;
    Connection connection;
    long begun;
    Loop.Timer timer;
    String token; // that was sent
    boolean again; // it was sent again with another token
    boolean sent;
    boolean over;

    /** Makes a call that changes something. */
    Call(Sort sort, String path, Object body, long wait, long timeout, Consumer<Answer> done) {
        this.sort = sort;
        this.method = "POST";
        this.path = path;
        this.body = Json.write(body).getBytes(StandardCharsets.UTF_8);
        this.wait = wait;
        this.timeout = timeout;
        this.done = done;
    }

    /** Makes a call that reads. */
    Call(Sort sort, String path, long timeout, Consumer<Answer> done) {
        this.sort = sort;
        this.method = "GET";
        this.path = path;
        this.body = new byte[0];
        this.wait = 0;
        this.timeout = timeout;
        this.done = done;
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
        if (method.equals("POST")) {
            head.append("\r\nContent-Type: application/json\r\nContent-Length: ").append(body.length);
        }
        byte[] first = head.append("\r\n\r\n").toString().getBytes(StandardCharsets.ISO_8859_1);
        byte[] all = java.util.Arrays.copyOf(first, first.length + body.length);
        System.arraycopy(body, 0, all, first.length, body.length);
        return all;
    }
}
