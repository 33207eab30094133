package io.github.distlock;

import java.util.ArrayDeque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;

/** What the locks of one client share. */
final class Engine {
    private static final int MOST_EVENTS = 10_000; // that wait for a callback

    final Loop loop;
    final Api api;
    final Renewals renewals;
    final Map<String, String> meta;
    final ConcurrentMap<List<Object>, Hold> reentrant = new ConcurrentHashMap<>(); // by thread and name
    private final Consumer<Event> onEvent;
    private final Queue<Event> events = new ArrayDeque<>(); // guarded by itself
    private boolean reporting; // guarded by events
    private boolean failed; // of the thread that reports

    Engine(Loop loop, Api api, Map<String, String> meta, Consumer<Event> onEvent) {
        this.loop = loop;
        this.api = api;
        this.meta = meta;
        this.onEvent = onEvent;
        this.renewals = new Renewals(loop, api);
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

    /** Releases until an answer, for a few tries. In the loop's thread. */
    void release(Map<String, Object> hold, long until, long timeout, Consumer<Answer> done) {
        new Object() {
            int tries;
            boolean unknown; // an earlier request may have released it

            void send() {
                api.send(new Call(Call.Sort.SHORT, "/v1/release", hold, 0, timeout, this::answered));
            }

            void answered(Answer a) {
                tries++;
                if (a.is("lost") && unknown) {
                    done.accept(new Answer("ok", a.body));
                } else if (a.isAnswer()) {
                    done.accept(a);
                } else if (tries >= 2 + 2 * api.servers.size() || until - System.nanoTime() <= 0) {
                    done.accept(new Answer("unknown", a.body));
                } else {
                    unknown |= a.is("unknown");
                    loop.after(pause(tries, until - System.nanoTime()), this::send);
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
