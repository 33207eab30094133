package io.github.distlock;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Sends calls to the server in use, over connections that are kept, and goes to the next server if one gives no answer. Only
 * the loop's thread uses it.
 */
final class Api {
    private static final long SECOND = TimeUnit.SECONDS.toNanos(1);
    private static final long IDLE = 30 * SECOND; // less than what proxies and servers have
    private static final long SILENCE = 5 * SECOND; // after which a server that lets calls wait is asked whether it lives

    final List<Server> servers;
    private final Loop loop;
    private final Token token;
    private final Trust trust;
    private final int connections;
    private final ByteBuffer buffer = ByteBuffer.allocate(Wire.ROOM);
    private final Deque<Call> queue = new ArrayDeque<>(); // calls for which there was no connection
    private int at; // the server in use
    private int running; // calls but URGENT ones
    private int waits; // calls that wait, of those that run or are in the queue
    private String backend; // the name of the first one seen

    Api(Loop loop, List<Server> servers, Token token, Trust trust, int connections) {
        this.loop = loop;
        this.servers = servers;
        this.token = token;
        this.trust = trust;
        this.connections = connections;
    }

    /** Reports whether one more call may wait: half of the connections are for the others. */
    boolean hasRoomToWait() {
        return waits < Math.max(1, connections / 2);
    }

    /** Sends a call. Its done is called once, unless it is cancelled. */
    Call send(Call c) {
        waits += c.sort == Call.Sort.WAIT ? 1 : 0; // also while it has no connection yet, or it would take one of the others'
        if (c.sort != Call.Sort.URGENT && running >= connections) {
            queue.add(c);
        } else {
            start(c, servers.get(at));
        }
        return c;
    }

    /** Ends a call. The server notices that its client has gone. */
    void cancel(Call c) {
        if (c.over) {
            return;
        }
        if (c.server == null) {
            c.over = true;
            queue.remove(c);
            waits -= c.sort == Call.Sort.WAIT ? 1 : 0;
            return;
        }
        if (c.connection != null) {
            c.connection.close();
        }
        end(c);
    }

    /** Goes to the next server, if this one is in use. */
    void leave(Server s) {
        if (servers.get(at) == s) {
            at = (at + 1) % servers.size();
        }
    }

    private void start(Call c, Server s) {
        c.server = s;
        c.begun = System.nanoTime();
        if (c.sort != Call.Sort.URGENT) {
            running++;
        }
        if (c.sort == Call.Sort.WAIT) {
            s.waits.add(c);
            probe(s);
        }
        c.timer = loop.after(patience(s, c.timeout), () -> late(c));
        connect(c);
    }

    /** Returns how long an answer may take. A server that may be off gets a second at first if there are others. */
    private long patience(Server s, long most) {
        return servers.size() == 1 ? most : Math.min(most, SECOND << 2 * Math.min(s.failures, 8));
    }

    private void late(Call c) {
        if (c.connection != null) {
            c.connection.close();
        }
        fail(c, "no answer in time");
    }

    private void connect(Call c) {
        Connection idle = c.server.idle.pollLast();
        if (idle != null) {
            transmit(c, idle);
            return;
        }
        long most = patience(c.server, c.timeout);
        var d = new Dialer(c.server, trust, (int) TimeUnit.NANOSECONDS.toMillis(most));
        var end = loop.after(most, d::end); // also if the call is over before
        try {
            Background.THREADS.execute(() -> {
                token.reread();
                d.dial((wire, failure) -> loop.execute(() -> dialed(c, end, wire, failure)));
            });
        } catch (RuntimeException | OutOfMemoryError e) { // no thread
            loop.execute(() -> dialed(c, end, null, String.valueOf(e.getMessage())));
        }
    }

    private void dialed(Call c, Loop.Timer end, Wire wire, String failure) {
        end.cancel();
        Connection made = null;
        try {
            if (wire != null) {
                made = new Connection(c.server, wire, loop, buffer, c.server.idle::remove);
            }
        } catch (IOException e) {
            wire.close();
            failure = Dialer.describe(e);
        }
        if (c.over) {
            if (made != null) {
                keep(made);
            }
        } else if (made != null) {
            transmit(c, made);
        } else {
            fail(c, failure);
        }
    }

    private void transmit(Call c, Connection to) {
        c.connection = to;
        c.sent = true;
        c.token = token.value();
        if (c.sort == Call.Sort.WAIT) {
            c.timer.cancel();
            c.timer = loop.after(c.wait + c.timeout, () -> late(c));
        }
        to.send(c.text(backend), (answer, failure) -> received(c, answer, failure));
    }

    /** Keeps a connection for the next call. */
    private void keep(Connection c) {
        c.server.idle.addLast(c);
        c.stay(loop.after(IDLE, () -> {
            c.server.idle.remove(c);
            c.close();
        }));
    }

    private void received(Call c, Response r, String failure) {
        if (r == null) {
            fail(c, failure);
            return;
        }
        Server s = c.server;
        s.failures = 0;
        s.known = true;
        s.answered = System.nanoTime();
        if (r.keepAlive) {
            keep(c.connection);
        } else {
            c.connection.close();
        }
        c.connection = null;
        Answer a = Answer.judge(c, r, backend);
        if (a.is("denied") && r.status == 401 && token.isInFile() && !c.again) {
            retry(c, a);
            return;
        }
        if (backend == null && !r.header("distlock-backend").isEmpty() && !a.is("unknown")) {
            backend = r.header("distlock-backend");
        }
        finish(c, a);
    }

    /** Sends a call again if there is another token by now. */
    private void retry(Call c, Answer refusal) {
        c.again = true;
        Background.THREADS.execute(() -> {
            token.reread();
            loop.execute(() -> {
                if (c.over) {
                    return;
                }
                if (token.value().equals(c.token)) {
                    finish(c, refusal);
                } else {
                    connect(c);
                }
            });
        });
    }

    private void fail(Call c, String why) {
        Server s = c.server;
        if (s.failures == 0 || c.begun - s.failed >= 0) { // many calls that fail together are one failure
            s.failures++;
            s.failed = System.nanoTime();
        }
        for (Connection i : s.idle) { // if one is dead, all may be
            i.close();
        }
        s.idle.clear();
        finish(c, Answer.of(c.sent ? "unknown" : "unsent", c.server.url + ": " + why));
    }

    private void finish(Call c, Answer a) {
        if (c.over) {
            return;
        }
        if (!a.isAnswer()) {
            leave(c.server);
        }
        end(c);
        c.done.accept(a);
    }

    private void end(Call c) {
        c.over = true;
        c.timer.cancel();
        c.server.waits.remove(c);
        waits -= c.sort == Call.Sort.WAIT ? 1 : 0;
        if (c.sort != Call.Sort.URGENT && --running < connections && !queue.isEmpty()) {
            start(queue.poll(), servers.get(at));
        }
    }

    /** Asks a server whether it lives, soon after calls began to wait there and then from time to time, until none waits. */
    private void probe(Server s) {
        if (servers.size() == 1 || s.probed || s.waits.isEmpty()) {
            return;
        }
        s.probed = true;
        loop.after(s.known ? s.answered + SILENCE - System.nanoTime() : 0, () -> {
            long start = System.nanoTime();
            if (s.waits.isEmpty() || s.known && start - s.answered < SILENCE) {
                s.probed = false;
                probe(s);
                return;
            }
            start(new Call(Call.Sort.URGENT, "/v1", 5 * SECOND, a -> {
                s.probed = false;
                if (!s.known || s.answered - start < 0) {
                    for (Call c : new ArrayList<>(s.waits)) {
                        late(c);
                    }
                }
                probe(s);
            }), s);
        });
    }
}
