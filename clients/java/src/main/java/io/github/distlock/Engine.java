package io.github.distlock;

import java.util.ArrayDeque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;

/** What the locks of one client share. */
final class Engine {
    static final long LATE = 10_000_000_000L; // for which an attempt may be under way, beside its TTL

    private static final int MOST_EVENTS = 10_000; // that wait for a callback

    final Loop loop;
    final Api api;
    final Renewals renewals;
    private final Map<String, String> meta;
    private final StringBuilder metaText; // the same as JSON
    final ConcurrentMap<List<Object>, Hold> reentrant = new ConcurrentHashMap<>(); // by thread and name
    private final Consumer<Event> onEvent;
    private final Queue<Event> events = new ArrayDeque<>(); // guarded by itself
    private boolean reporting; // guarded by events
    private boolean failed; // of the thread that reports
    private long complained; // when a wait without an answer was logged; the loop's

    Engine(Loop loop, Api api, Map<String, String> meta, Consumer<Event> onEvent) {
        this.loop = loop;
        this.api = api;
        this.meta = meta;
        this.metaText = new StringBuilder(Json.write(meta));
        this.onEvent = onEvent;
        this.renewals = new Renewals(loop, api);
    }

    /** Returns what others see of a holder. */
    Object meta(Options o) {
        if (o.meta().isEmpty()) {
            return metaText;
        }
        var all = new LinkedHashMap<>(meta);
        all.putAll(o.meta());
        return all;
    }

    /** Makes the body of a call for one hold. */
    static Map<String, Object> body(String name, String owner, String mode) {
        var body = new LinkedHashMap<String, Object>();
        body.put("name", name);
        body.put("owner", owner);
        body.put("mode", mode);
        return body;
    }

    /** Returns how long to wait after so many failures, in ns. */
    static long pause(int failures, long most) {
        double millis = Math.min(1000, 25 << Math.min(failures, 10)) * ThreadLocalRandom.current().nextDouble(0.5, 1);
        return Math.max(0, Math.min((long) (millis * 1e6), most));
    }

    /** Logs a wait that gets no answer, at most once a minute. In the loop's thread. */
    void complain(String name, String why) {
        long now = System.nanoTime();
        if (complained == 0 || now - complained > 60_000_000_000L) {
            complained = now;
            Background.warn("distlock: the wait for \"" + name + "\" goes on without a server that lets it in: " + why, null);
        }
    }

    /**
     * Releases until an answer, or until the hold is over. done is told the answer, or "unknown" after a few tries or a time: it goes on
     * in the background then. It is sent also to the servers where an attempt may yet arrive, which refuse one that comes later. In the
     * loop's thread.
     */
    void release(Map<String, Object> hold, Set<Server> late, long until, long tell, long timeout, Consumer<Answer> done) {
        for (Server s : late) {
            if (!api.isInUse(s)) {
                api.start(new Call(Call.Sort.URGENT, Call.RELEASE, hold, LATE, a -> { }), s);
            }
        }
        new Object() {
            int tries;
            boolean told;
            boolean unknown; // an earlier request may have released it

            void send() {
                api.send(new Call(Call.Sort.SHORT, Call.RELEASE, hold, timeout, this::answered));
            }

            void answered(Answer a) {
                tries++;
                long now = System.nanoTime();
                if (a.isAnswer() && !a.is("denied")) { // a right may be given back
                    tell(a.is("lost") && unknown ? new Answer("ok", a.body) : a);
                    return;
                }
                unknown |= a.is("unknown");
                if (tries >= 2 + 2 * api.servers.size() || tell - now <= 0 || until - now <= 0) {
                    tell(new Answer("unknown", a.body));
                }
                if (until - now > 0) {
                    loop.after(pause(tries, until - now), this::send);
                }
            }

            void tell(Answer a) {
                if (!told) {
                    told = true;
                    done.accept(a);
                }
            }
        }.send();
    }

    /** Reports an event, in order and in a thread of its own. */
    void report(Event.Kind kind, String name, long nanos) {
        if (onEvent == null) {
            return;
        }
        synchronized (events) {
            if (events.size() < MOST_EVENTS) {
                events.add(new Event(kind, name, nanos));
            }
            if (reporting) {
                return;
            }
            reporting = true;
        }
        try {
            Background.THREADS.execute(this::reportAll);
        } catch (RuntimeException | OutOfMemoryError e) { // no thread: the next event tries again
            synchronized (events) {
                reporting = false;
            }
        }
    }

    private void reportAll() {
        for (;;) {
            Event e;
            synchronized (events) {
                e = events.poll();
                if (e == null) {
                    reporting = false;
                    return;
                }
            }
            try {
                onEvent.accept(e);
            } catch (Throwable error) {
                if (!failed) { // once: it may fail each time
                    failed = true;
                    Background.warn("distlock: onEvent failed", error);
                }
            }
        }
    }
}
