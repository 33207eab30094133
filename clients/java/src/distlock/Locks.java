package distlock;

import java.net.ConnectException;
import java.net.InetAddress;
import java.net.URI;
import java.net.UnknownHostException;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/**
 * The locks of a distlock server, or of several servers before the same backend. It is safe for threads.
 *
 * <pre>{@code
 * var locks = new Locks("http://127.0.0.1:7077");
 * try (var lease = locks.lock("report", Options.defaults().withWait(Duration.ofSeconds(10)))) {
 *     write(report, lease.fence());
 * }
 * }</pre>
 *
 * <p>README.md says what holds and what does not.
 */
public final class Locks {
    private static final long POLL = Duration.ofSeconds(20).toNanos(); // less than servers and proxies allow
    private static final Set<String> FACTS = Set.of("held", "lost", "invalid", "unsupported", "denied", "unsent");
    private static final Set<String> NO_ANSWER = Set.of("unknown", "unsent", "other");

    private final List<URI> urls = new ArrayList<>();
    private final AtomicInteger at = new AtomicInteger(); // the server in use
    private final AtomicReference<String> backend = new AtomicReference<>(); // the name of the first one seen
    private final HttpClient http;
    private final String token;
    private final Map<String, String> meta = new LinkedHashMap<>();

    /** Uses servers that want no token. */
    public Locks(String... urls) {
        this(List.of(urls), null, HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(5)).build());
    }

    /** Uses servers with a token, or null, and an HttpClient of your own, such as one with an SSLContext. */
    public Locks(List<String> urls, String token, HttpClient http) {
        if (urls.isEmpty() || token != null && !token.matches("[!-~]+")
                || http.followRedirects() != HttpClient.Redirect.NEVER) {
            throw new IllegalArgumentException(
                    "want at least one URL, a token that a header can have, and an HttpClient that follows no redirects");
        }
        urls.forEach(u -> this.urls.add(parse(u)));
        this.token = token;
        this.http = http;
        meta.put("host", host());
        meta.put("pid", String.valueOf(ProcessHandle.current().pid()));
        meta.put("program", System.getProperty("sun.java.command", "java").split(" ")[0]);
    }

    /** What a server has answered: a fact, unknown, or unsent if nothing was taken. */
    record Answer(String kind, Map<String, Object> body) {
        boolean isAnswer() {
            return !NO_ANSWER.contains(kind);
        }

        String detail() {
            return String.valueOf(body.get("detail"));
        }
    }

    /** What identifies a hold. */
    record Hold(String name, String owner, String mode) {
        Map<String, Object> body() {
            return new LinkedHashMap<>(Map.of("name", name, "owner", owner, "mode", mode));
        }
    }

    /**
     * Takes a lock. Throws Held, Invalid, Denied or Unavailable, or InterruptedException if the thread is
     * interrupted while it waits.
     */
    public Lease lock(String name, Options o) throws InterruptedException {
        var hold = new Hold(name, UUID.randomUUID().toString(), o.mode());
        boolean taken = false; // whether a server may have a hold of this owner, or a place in the queue
        boolean unsure = false; // whether a request of this owner had no answer
        long begin = System.nanoTime(), wait = o.patience() == null ? Long.MAX_VALUE : o.patience().toNanos();
        try {
            for (int tries = 1, failures = 0; ; tries++) {
                long start = System.nanoTime();
                long poll = Math.max(0, Math.min(POLL, wait - (start - begin)));
                boolean before = taken;
                taken = true; // also if the call is interrupted
                Answer a = call("acquire", request(hold, o, poll), poll + o.timeout());
                if (poll == 0 && !a.kind.equals("ok") && !a.kind.equals("unknown")) {
                    taken = before;
                }
                if (a.kind.equals("ok")) {
                    Lease lease = granted(hold, o, start, a.body);
                    if (lease != null) {
                        return lease;
                    }
                    a = new Answer("unknown", Map.of("detail", "the answer came too late"));
                }
                unsure |= a.kind.equals("unknown");
                if (Boolean.TRUE.equals(a.body.get("spent"))) { // the owner was released, perhaps late: it must make no other attempt
                    if (unsure) {
                        release(hold, System.nanoTime() + o.timeout(), o.timeout());
                    }
                    hold = new Hold(name, UUID.randomUUID().toString(), o.mode());
                    taken = unsure = false;
                }
                failIfFinal(a);
                failures = a.kind.equals("held") ? 0 : failures + 1;
                long remaining = wait - (System.nanoTime() - begin);
                if (remaining <= 0 && a.kind.equals("held")) {
                    throw new DistlockException.Held(name, holders(a.body));
                }
                if (remaining <= 0 && tries >= 2 * urls.size()) {
                    throw new DistlockException.Unavailable(a.detail());
                }
                pause(failures, remaining);
            }
        } catch (Throwable e) {
            if (taken) {
                release(hold, System.nanoTime() + o.timeout(), o.timeout());
            }
            throw e;
        }
    }

    private Map<String, Object> request(Hold hold, Options o, long poll) {
        var body = hold.body();
        body.putAll(Map.of("ttl_ms", o.millis(), "wait_ms", TimeUnit.NANOSECONDS.toMillis(poll), "meta", meta));
        if (o.limit() > 0) {
            body.put("limit", o.limit());
        }
        return body;
    }

    /** Makes the lease of a grant. Returns null if it is over already, or makes no sense. */
    private Lease granted(Hold hold, Options o, long start, Map<String, Object> body) {
        try {
            long now = System.nanoTime();
            long waited = Math.min(nanos(body, "waited_ms"), now - start); // not for longer than the answer took
            long deadline = start + waited + nanos(body, "ttl_ms") - o.margin();
            long fence = Long.parseUnsignedLong((String) body.get("fence"));
            return deadline - now > 0 ? new Lease(this, hold, o, deadline, fence) : null;
        } catch (ClassCastException | NullPointerException | NumberFormatException e) {
            return null;
        }
    }

    private static long nanos(Map<String, Object> body, String key) {
        return TimeUnit.MILLISECONDS.toNanos(Long.parseLong(((Json.Number) body.get(key)).text()));
    }

    private static void failIfFinal(Answer a) {
        switch (a.kind) {
            case "invalid", "unsupported" -> throw new DistlockException.Invalid(a.detail());
            case "denied" -> throw new DistlockException.Denied(a.detail());
            case "other" -> throw new DistlockException.Unavailable(a.detail());
            default -> { }
        }
    }

    @SuppressWarnings("unchecked")
    private static List<DistlockException.Holder> holders(Map<String, Object> problem) {
        var all = new ArrayList<DistlockException.Holder>();
        if (problem.get("holders") instanceof List<?> list) {
            for (Object o : list) {
                if (o instanceof Map<?, ?> h) {
                    String mode = h.get("mode") instanceof String s ? s : "";
                    String fence = h.get("fence") instanceof String s && s.matches("\\d{1,18}|[1-8]\\d{18}") ? s : "0";
                    var meta = h.get("meta") instanceof Map<?, ?> m ? (Map<String, Object>) m : Map.<String, Object>of();
                    all.add(new DistlockException.Holder(mode, Long.parseLong(fence), meta));
                }
            }
        }
        return all;
    }

    /** Releases until an answer, for a few tries. An interrupt does not stop it. */
    Answer release(Hold hold, long until, long timeout) {
        boolean interrupted = Thread.interrupted(), unknown = false;
        Answer a = null;
        try {
            for (int n = 0; n < 2 + 2 * urls.size() && (n == 0 || until - System.nanoTime() > 0); n++) {
                try {
                    a = call("release", hold.body(), timeout);
                } catch (InterruptedException e) { // which may have ended the request before its answer
                    interrupted = true;
                    a = new Answer("unknown", Map.of("detail", "the thread was interrupted"));
                }
                if (a.kind.equals("lost") && unknown) {
                    return new Answer("ok", a.body); // an earlier request has released it
                }
                if (a.isAnswer()) {
                    return a;
                }
                unknown |= a.kind.equals("unknown");
                try {
                    pause(n, until - System.nanoTime());
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
            return new Answer("unknown", a.body);
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Renews, and returns the outcome. */
    String renew(Hold hold, Options o) throws InterruptedException {
        var body = hold.body();
        body.put("ttl_ms", o.millis());
        Answer a = call("renew", Map.of("holds", List.of(body)), o.timeout());
        return a.kind.equals("ok") ? outcome(a) : "unknown";
    }

    private static String outcome(Answer renewal) {
        return renewal.body.get("outcome") instanceof String s ? s : "unknown";
    }

    /** Sends one request to the server in use, and goes to the next one if that gives no answer. */
    private Answer call(String call, Map<String, Object> body, long timeout) throws InterruptedException {
        int used = at.get();
        Answer a = exchange(urls.get(used), call, Json.write(body), timeout);
        if (call.equals("renew") && a.kind.equals("ok") && !new Answer(outcome(a), a.body).isAnswer()) {
            a = new Answer("unknown", a.body); // the server works, and its backend does not
        }
        if (!a.isAnswer()) {
            at.compareAndSet(used, (used + 1) % urls.size());
        }
        return a;
    }

    private Answer exchange(URI url, String call, String body, long timeout) throws InterruptedException {
        String id = UUID.randomUUID().toString();
        var request = HttpRequest.newBuilder(URI.create(url + "/v1/" + call)).version(HttpClient.Version.HTTP_1_1)
                .POST(HttpRequest.BodyPublishers.ofString(body)).header("Content-Type", "application/json")
                .header("Distlock-Request", id);
        if (token != null) {
            request.header("Authorization", "Bearer " + token);
        }
        if (backend.get() != null) {
            request.header("Distlock-Backend", backend.get());
        }
        var sent = http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofString());
        try {
            var response = sent.get(timeout, TimeUnit.NANOSECONDS);
            if (!response.headers().firstValue("Distlock-Request").orElse("").equals(id)) { // a proxy's, or to another request
                return new Answer("unknown", Map.of("detail", url + ": status " + response.statusCode()));
            }
            return judge(url, response);
        } catch (TimeoutException e) {
            return new Answer("unknown", Map.of("detail", url + ": no answer in time"));
        } catch (ExecutionException e) {
            Throwable why = e.getCause();
            boolean unsent = why instanceof ConnectException || why instanceof HttpConnectTimeoutException;
            return new Answer(unsent ? "unsent" : "unknown", Map.of("detail", url + ": " + why.getClass().getSimpleName()));
        } finally {
            sent.cancel(true);
        }
    }

    /** Returns what the answer states as a fact. */
    @SuppressWarnings("unchecked")
    private Answer judge(URI url, HttpResponse<String> response) {
        var body = new LinkedHashMap<String, Object>();
        int status = response.statusCode();
        body.put("detail", url + ": status " + status);
        try {
            if (status != 204 && Json.read(response.body()) instanceof Map<?, ?> m) {
                body.putAll((Map<String, Object>) m);
            }
        } catch (IllegalArgumentException e) {
            return new Answer("unknown", body); // a proxy's
        }
        String kind = body.get("distlock") instanceof String s ? s : "unknown";
        String name = response.headers().firstValue("Distlock-Backend").orElse(null);
        if (status == 421 && body.containsKey("distlock")) {
            body.keySet().retainAll(Set.of("detail"));
            return new Answer("other", body); // not the server that is meant
        }
        if (name == null) { // the server doesn't know us
            body.keySet().retainAll(Set.of("detail"));
            return new Answer(status == 401 && kind.equals("denied") ? "denied" : "unknown", body);
        }
        backend.compareAndSet(null, name);
        if (!name.equals(backend.get())) {
            body.clear();
            body.put("detail", url + " is before another backend than the first server: " + name + ", not " + backend.get());
            return new Answer("other", body);
        }
        if (status == 200 || status == 204) {
            return new Answer("ok", body);
        }
        return new Answer(FACTS.contains(kind) ? kind : "unknown", body);
    }

    private static void pause(int failures, long most) throws InterruptedException {
        double millis = Math.min(1000, 25 << Math.min(failures, 10)) * ThreadLocalRandom.current().nextDouble(0.5, 1);
        TimeUnit.NANOSECONDS.sleep(Math.max(0, Math.min((long) (millis * 1e6), most)));
    }

    private static URI parse(String text) {
        try {
            URI u = new URI(text.replaceAll("/+$", ""));
            if (Set.of("http", "https").contains(u.getScheme()) && u.getHost() != null && u.getRawUserInfo() == null
                    && u.getRawQuery() == null && u.getRawFragment() == null) {
                return u;
            }
        } catch (java.net.URISyntaxException e) {
            // the message would have the text
        }
        throw new IllegalArgumentException(
                "want URLs such as http://host:7077 or https://host; a token is an argument of its own");
    }

    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            return "?";
        }
    }
}
