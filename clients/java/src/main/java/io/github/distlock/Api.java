package io.github.distlock;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * Sends calls to the server in use, over connections that are kept, and goes to the next server if one gives no answer. Only
 * the loop's thread uses it.
 */
final class Api {
    private static final long SECOND = TimeUnit.SECONDS.toNanos(1);
    private static final long IDLE = 30 * SECOND; // less than what proxies and servers have
    private static final long SILENCE = 5 * SECOND; // after which a server that lets calls wait is asked whether it lives

    private static final long POLL = 20 * SECOND, TURN = SECOND; // of a wait: less than servers and proxies allow; where more wait than may
    private static final long CLOSE = SECOND; // calls that are so close together are lines of one connection
    private static final long AGAIN = 10 * SECOND, VAIN = 300 * SECOND; // until it is opened again; where it can't be
    private static final Set<String> WORKS = Set.of("ok", "held", "lost"), LATER = Set.of("denied", "unsent", "other");

    final List<Server> servers;
    private final Loop loop;
    private final Token token;
    private final Trust trust;
    private final int connections;
    private final ByteBuffer buffer = ByteBuffer.allocate(Wire.ROOM);
    private final Deque<Call> queue = new ArrayDeque<>(), waiting = new ArrayDeque<>(); // calls for which there was no connection; those that wait for locks
    private int at; // the server in use
    private int running; // requests but URGENT ones
    private int waits; // those that wait for locks
    private String backend; // the name of the first one seen
    private boolean works; // a server has let a call for a lock in

    Api(Loop loop, List<Server> servers, Token token, Trust trust, int connections) {
        this.loop = loop;
        this.servers = servers;
        this.token = token;
        this.trust = trust;
        this.connections = connections;
    }

    /** Reports whether this client was let in before, for some lock. */
    boolean works() {
        return works;
    }

    /** Sends a call. Its done is called once, unless it is cancelled. */
    Call send(Call c) {
        if (!begins(c)) {
            (c.sort == Call.Sort.WAIT ? waiting : queue).add(c);
        }
        return c;
    }

    /** Begins a call as a line, or as a request if there is room: half of the connections are for calls that do not wait. */
    private boolean begins(Call c) {
        Server s = servers.get(at);
        boolean waits = c.sort == Call.Sort.WAIT;
        if (c.isForLock()) {
            c.begin(s, POLL);
        }
        if (c.isForLock() && c.body.length() <= Calls.MOST_BYTES) {
            for (Calls one : s.streams) {
                if (one.hasRoom(c)) {
                    watch(c, waits ? c.wait + c.timeout : patience(s, c.timeout));
                    one.send(c);
                    return true;
                }
            }
            openCalls(s);
            if (waits && s.opening && !s.streams.isEmpty()) {
                return false; // it will be there soon
            }
        }
        boolean free = c.sort == Call.Sort.URGENT || running < connections && (!waits || this.waits < Math.max(1, connections / 2));
        if (free) {
            start(c, s);
        }
        return free;
    }

    /** Begins the calls for which there was no room. */
    private void beginMore() {
        for (Deque<Call> q : List.of(queue, waiting)) {
            for (Call c; (c = q.poll()) != null; ) {
                if (!begins(c)) {
                    q.addFirst(c);
                    break;
                }
            }
        }
    }

    /** Opens a connection of calls, if calls for locks come close together. Without one they are requests. */
    private void openCalls(Server s) {
        long now = System.nanoTime();
        boolean close = !s.streams.isEmpty() || s.called != 0 && now - s.called < CLOSE;
        s.called = now;
        if (!close || s.opening || !s.known || backend == null || s.again != 0 && now - s.again < 0) {
            return;
        }
        s.opening = true;
        Call[] c = new Call[1];
        c[0] = new Call(Call.Sort.URGENT, Call.CALLS, AGAIN, a -> upgraded(c[0], a));
        start(c[0], s);
    }

    private void upgraded(Call c, Answer a) {
        Server s = c.server;
        if (!a.is("ok")) {
            opened(null, s, false);
            s.again = System.nanoTime() + (c.answered && !LATER.contains(a.kind) ? VAIN : AGAIN);
            return;
        }
        var calls = new Calls(s, c.connection, loop, this);
        calls.begin(c.rest);
        loop.after(AGAIN, () -> {
            if (calls.isSilent()) { // a proxy keeps lines back
                calls.end("no answer in time");
                s.again = System.nanoTime() + VAIN;
            }
        });
    }

    /** Lets a new connection have calls, or not. */
    void opened(Calls c, Server s, boolean ok) {
        s.opening = false;
        s.again = ok ? 0 : System.nanoTime() + AGAIN;
        if (ok) {
            s.streams.add(c);
        }
        beginMore();
    }

    /** Takes the answer to a line. */
    void answered(Call c, Answer a, Calls from) {
        if (a.is("denied") && Long.valueOf(401).equals(a.body.get("status"))) { // nothing was done, and there may be another token
            from.retire();
            c.timer.cancel();
            c.server.waits.remove(c);
            start(c, c.server);
        } else {
            finish(c, a);
        }
    }

    /** Ends a call. The server notices that its client has gone. */
    void cancel(Call c) {
        if (c.over) {
            return;
        }
        if (c.timer == null) {
            c.over = true;
            (c.sort == Call.Sort.WAIT ? waiting : queue).remove(c);
            return;
        }
        if (c.connection != null) {
            c.connection.close();
        }
        if (c.calls != null) {
            c.calls.leave(c);
        }
        end(c);
    }

    /** Goes to the next server, if this one is in use. */
    void leave(Server s) {
        if (isInUse(s)) {
            at = (at + 1) % servers.size();
        }
    }

    boolean isInUse(Server s) {
        return servers.get(at) == s;
    }

    /** Sends a call as a request to a server. */
    void start(Call c, Server s) {
        c.begin(s, waits < connections / 4 && waiting.isEmpty() ? POLL : TURN);
        c.counted = c.sort != Call.Sort.URGENT;
        running += c.counted ? 1 : 0;
        waits += c.sort == Call.Sort.WAIT ? 1 : 0;
        watch(c, patience(s, c.timeout));
        connect(c);
    }

    /** Ends a call that gets no answer in time. */
    private void watch(Call c, long time) {
        c.timer = loop.after(time, () -> late(c));
        if (c.sort == Call.Sort.WAIT) {
            c.server.waits.add(c);
            probe(c.server);
        }
    }

    /** Returns how long an answer may take. A server that may be off gets a second at first if there are others. */
    private long patience(Server s, long most) {
        return servers.size() == 1 ? most : Math.min(most, SECOND << 2 * Math.min(s.failures, 8));
    }

    private void late(Call c) {
        String why = "no answer in time";
        Calls of = c.calls;
        if (c.connection != null) {
            c.connection.close();
        }
        boolean silent = of != null && of.leave(c);
        fail(c, why);
        if (silent) {
            of.retire();
        }
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
        s.hears();
        Answer a = Answer.judge(c, r, backend);
        if (r.status == Response.UPGRADED && a.is("ok")) {
            c.rest = r.rest;
            finish(c, a);
            return;
        }
        if (r.keepAlive && r.status != Response.UPGRADED) {
            keep(c.connection);
        } else {
            c.connection.close();
        }
        c.connection = null;
        c.answered = r.status / 100 != 5;
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

    /** Ends a call without an answer. */
    void fail(Call c, String why) {
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
        if (!a.isAnswer() && !c.path.equals(Call.CALLS)) {
            leave(c.server);
        }
        works |= c.method.equals("POST") && WORKS.contains(a.kind);
        end(c);
        c.done.accept(a);
    }

    private void end(Call c) {
        c.over = true;
        c.timer.cancel();
        c.server.waits.remove(c);
        if (c.counted) {
            running--;
            waits -= c.sort == Call.Sort.WAIT ? 1 : 0;
        }
        if (!queue.isEmpty() || !waiting.isEmpty()) {
            beginMore();
        }
    }

    /** Asks a server whether it lives, soon after calls began to wait there and then from time to time, until none waits. */
    private void probe(Server s) {
        if (s.probed || s.waits.isEmpty()) {
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
