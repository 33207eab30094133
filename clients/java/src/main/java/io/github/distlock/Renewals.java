package io.github.distlock;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/** Renews the holds of a client, as many in one request as are due at about the same time. In the loop's thread. */
final class Renewals {
    private static final int MOST_HOLDS = 1000, MOST_BYTES = 1 << 20; // in one request
    private static final long JOIN = TimeUnit.SECONDS.toNanos(2); // how much sooner than due a hold is renewed beside others

    private final Loop loop;
    private final Api api;
    private final TreeSet<Hold> due = new TreeSet<>(Comparator.<Hold>comparingLong(h -> h.next - Hold.EPOCH).thenComparing(h -> h.owner));
    private Loop.Timer timer;

    Renewals(Loop loop, Api api) {
        this.loop = loop;
        this.api = api;
    }

    /** Has a hold renewed at a time of System.nanoTime. */
    void add(Hold h, long at) {
        h.next = at;
        due.add(h);
        if (due.first() == h) {
            arm();
        }
    }

    void remove(Hold h) {
        due.remove(h);
        if (due.isEmpty() && timer != null) {
            timer.cancel();
            timer = null;
        }
    }

    private void arm() {
        if (timer != null) {
            timer.cancel();
        }
        timer = due.isEmpty() ? null : loop.after(due.first().next - System.nanoTime(), this::renew);
    }

    private void renew() {
        long now = System.nanoTime();
        var groups = new HashMap<Integer, List<Hold>>(); // by the size of their TTL: the shortest says how long a request may take
        int holds = 0, size = 0;
        for (var all = due.iterator(); all.hasNext() && holds < MOST_HOLDS && size < MOST_BYTES; ) {
            Hold h = all.next();
            if (h.next - now > JOIN) {
                break;
            }
            if (h.next - now <= h.options.ttl() / 12) {
                all.remove();
                groups.computeIfAbsent(Long.numberOfLeadingZeros(h.options.timeout()), k -> new ArrayList<>()).add(h);
                holds++;
                size += 6 * h.name.length() + 200;
            }
        }
        arm(); // another request does not wait for these
        groups.values().forEach(g -> renew(g, now));
    }

    private void renew(List<Hold> holds, long now) {
        var bodies = holds.stream().map(h -> h.renewal(h.options.ttl())).collect(Collectors.toList());
        long timeout = holds.stream().mapToLong(h -> h.options.timeout()).min().getAsLong();
        api.send(new Call(Call.Sort.URGENT, "/v1/renew", Map.of("holds", bodies), timeout, a -> {
            String[] outcomes = outcomes(a, holds.size());
            for (int i = 0; i < outcomes.length; i++) {
                holds.get(i).renewed(outcomes[i], now);
            }
        }));
    }

    /** Renews one hold, for a TTL of its own, until an answer; done gets the outcome and the time of the request. */
    void once(Hold h, long ttl, int tries, Outcome done) {
        long start = System.nanoTime();
        api.send(new Call(Call.Sort.URGENT, "/v1/renew", Map.of("holds", List.of(h.renewal(ttl))), h.options.timeout(), a -> {
            String outcome = outcomes(a, 1)[0];
            if (Answer.isAnswer(outcome) || tries <= 1) {
                done.accept(outcome, start, detail(a));
            } else {
                loop.after(Engine.pause(2, Long.MAX_VALUE), () -> once(h, ttl, tries - 1, done));
            }
        }));
    }

    /** What became of one renewal. */
    interface Outcome {
        void accept(String outcome, long start, String detail);
    }

    private static String detail(Answer a) {
        Object detail = a.lines.isEmpty() ? null : a.lines.get(0).get("detail");
        return detail instanceof String ? (String) detail : a.detail();
    }

    /** Returns the outcome of each hold. A server that has none of them works, but its backend does not. */
    private String[] outcomes(Answer a, int n) {
        var all = new String[n];
        java.util.Arrays.fill(all, "unknown");
        boolean facts = false;
        for (Map<String, Object> line : a.lines) {
            Object index = line.get("index"), outcome = line.get("outcome");
            if (index instanceof Long && (Long) index >= 0 && (Long) index < n && outcome instanceof String) {
                all[((Long) index).intValue()] = (String) outcome;
                facts |= Answer.isAnswer((String) outcome);
            }
        }
        if (a.is("ok") && !facts) {
            api.leave(a.from);
        }
        return all;
    }
}
