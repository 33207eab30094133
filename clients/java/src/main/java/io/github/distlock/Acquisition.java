package io.github.distlock;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * One lock that somebody wants. It asks until the lock is granted, its time is over, or the user completes the result, as by
 * cancelling it. What it may have taken is released then.
 */
final class Acquisition {
    private static final long SILENCE = TimeUnit.SECONDS.toNanos(5); // after which a wait without an answer is logged

    /** The lease, or the error. Whoever completes it, that ends the acquisition. */
    final CompletableFuture<Lease> result = new CompletableFuture<>();

    /** Is completed when the acquisition is over, and what it may have taken is released. */
    final CompletableFuture<Void> over = new CompletableFuture<>();

    private final Engine engine;
    private final String name;
    private final Options options;
    private final List<Object> key; // of a re-entrant lock, or null
    private final long begin = System.nanoTime();
    private final long wait;

    // The loop's.
    private String owner = UUID.randomUUID().toString();
    private boolean taken; // a server may have a hold of this owner, or a place in the queue
    private Set<Server> late = new HashSet<>(); // where a request of this owner had no answer
    private boolean ended;
    private boolean waited; // others hold the lock
    private int tries;
    private int failures;
    private long failing; // since when there is no answer that counts; 0: there is one
    private Call call;
    private Loop.Timer pause;

    Acquisition(Engine engine, String name, Options options, List<Object> key) {
        this.engine = engine;
        this.name = name;
        this.options = options;
        this.key = key;
        this.wait = options.patience();
        result.whenComplete((lease, error) -> {
            if (!ended) { // as the loop's thread knows; stop looks again
                engine.loop.execute(this::stop);
            }
        });
        engine.loop.execute(this::attempt);
    }

    private void attempt() {
        if (ended) {
            return;
        }
        tries++;
        long left = wait - (System.nanoTime() - begin);
        boolean before = taken;
        taken = true;
        long until = begin + Math.min(wait, Long.MAX_VALUE / 2);
        call = Call.acquire(this::request, left > 0, until, options.timeout(), a -> answered(a, call.begun, call.wait, before));
        engine.api.send(call);
    }

    private String request(long poll) {
        var body = Engine.body(name, owner, options.mode());
        body.put("ttl_ms", Options.millis(options.life()));
        body.put("wait_ms", TimeUnit.NANOSECONDS.toMillis(poll));
        body.put("meta", engine.meta(options));
        if (options.limit() > 0) {
            body.put("limit", options.limit());
        }
        if (!options.renew()) {
            body.put("fixed", true);
        }
        if (options.minHold() > 0) { // some stores can't keep a hold
            body.put("min_hold_ms", Options.millis(options.minHold()));
        }
        return Json.write(body);
    }

    private void answered(Answer a, long start, long poll, boolean before) {
        if (poll == 0 && !a.is("ok") && !a.is("unknown")) {
            taken = before;
        }
        if (a.is("ok")) {
            Lease lease = granted(start, a.body);
            if (lease != null) {
                ended = true;
                deliver(lease);
                return;
            }
            a = Answer.of("unknown", "the answer came too late");
        }
        waited |= a.is("held") && wait > 0;
        if (a.is("unknown")) {
            late.add(call.server);
        }
        failures = a.is("held") ? 0 : failures + 1;
        failing = a.is("held") ? 0 : failing == 0 ? start : failing;
        if (a.isSpent()) {
            renewOwner(a);
        } else {
            decide(a);
        }
    }

    /** Goes on with a fresh owner, since the server has released this one, perhaps late. */
    private void renewOwner(Answer a) {
        String old = owner;
        Set<Server> of = late;
        owner = UUID.randomUUID().toString();
        late = new HashSet<>();
        taken = false;
        if (!of.isEmpty()) {
            release(old, of, x -> decide(a));
        } else {
            decide(a);
        }
    }

    private void decide(Answer a) {
        long now = System.nanoTime(), left = wait - (now - begin);
        try {
            if (left <= 0 || !a.is("denied") || !engine.api.works()) { // a right may be given back
                a.failIfFinal();
            }
            if (left <= 0 && a.is("held")) {
                throw new DistlockException.Held(name, Holder.of(a.body));
            }
            if (left <= 0 && tries >= 2 * engine.api.servers.size()) {
                throw new DistlockException.Unavailable(a.detail());
            }
        } catch (DistlockException e) {
            end(e);
            return;
        }
        if (failing != 0 && now - failing >= SILENCE) {
            engine.complain(name, a.detail());
        }
        if (!ended) {
            pause = engine.loop.after(Engine.pause(failures, left), this::attempt);
        }
    }

    /** Makes the lease of a grant. Returns null if it is over already, or makes no sense. */
    private Lease granted(long start, Map<String, Object> body) {
        try {
            long now = System.nanoTime();
            long asked = TimeUnit.MILLISECONDS.toNanos((Long) body.get("waited_ms"));
            waited |= asked > 0 && wait > 0;
            long granted = start + Math.min(asked, now - start); // no longer than the answer took
            long life = TimeUnit.MILLISECONDS.toNanos((Long) body.get("ttl_ms"));
            long fence = Long.parseUnsignedLong((String) body.get("fence"));
            if (granted + life - Options.margin(options.ttl()) - now <= 0) {
                return null;
            }
            var hold = new Hold(engine, name, owner, options, late, granted, life, fence);
            var lease = new Lease(hold); // who drops it from now on has forgotten it
            hold.start();
            if (key != null) {
                hold.keyed(key);
            }
            return lease;
        } catch (ClassCastException | NullPointerException | NumberFormatException e) {
            return null;
        }
    }

    private void deliver(Lease lease) {
        report(Event.Kind.TAKEN);
        if (result.complete(lease)) {
            over.complete(null);
        } else { // the user has given up
            lease.abandon().whenComplete((x, error) -> over.complete(null));
        }
    }

    private void end(DistlockException error) {
        if (ended) {
            return;
        }
        ended = true;
        report(Event.Kind.FAILED);
        Runnable tell = () -> {
            over.complete(null);
            if (error != null) {
                result.completeExceptionally(error);
            }
        };
        if (taken) {
            release(owner, late, a -> tell.run());
        } else {
            tell.run();
        }
    }

    private void release(String of, Set<Server> at, Consumer<Answer> done) {
        long now = System.nanoTime();
        engine.release(Engine.body(name, of, options.mode()), at, now + options.life(), now + options.timeout(), options.timeout(), done);
    }

    /** Ends the acquisition of a user who has given up. */
    private void stop() {
        if (ended) {
            return;
        }
        engine.api.cancel(call);
        if (pause != null) {
            pause.cancel();
        }
        end(null);
    }

    private void report(Event.Kind kind) {
        long time = System.nanoTime() - begin;
        if (waited) {
            engine.report(Event.Kind.WAITED, name, time);
        }
        engine.report(kind, name, time);
    }
}
