// Makes calls as the suite says, with the client for Java. See program_test.go.

import io.github.distlock.Lease;
import io.github.distlock.Locks;
import io.github.distlock.Options;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

public final class Peer {
    // By the number of the call that made them.
    private static final Map<String, Locks> LOCKS = new ConcurrentHashMap<>();
    private static final Map<String, String[]> URLS = new ConcurrentHashMap<>();
    private static final Map<String, Lease> LEASES = new ConcurrentHashMap<>();
    private static final Map<String, Thread> PENDING = new ConcurrentHashMap<>();

    private static synchronized void say(String call, String words) {
        System.out.println(call + " " + words.replace('\n', ' '));
        System.out.flush();
    }

    /** Says when the lease was trusted last, once it is lost. */
    private static void watch(String call, Lease lease) {
        long trusted = 0;
        while (!lease.remaining().isZero()) {
            long now = System.nanoTime();
            if (!lease.remaining().isZero()) {
                trusted = now;
            }
            try {
                Thread.sleep(10);
            } catch (InterruptedException e) {
                return;
            }
        }
        long last = trusted;
        lease.lost().thenRun(() -> say(call, "lost " + last));
    }

    private static Locks open(String... urls) {
        return Locks.of(urls);
    }

    private static void open(String call, Map<String, String> a) {
        String[] urls = a.get("urls").split(",");
        var builder = Locks.builder().url(urls);
        if (a.containsKey("token")) {
            builder.token(a.get("token"));
        }
        if (a.containsKey("token_file")) {
            builder.tokenFile(Path.of(a.get("token_file")));
        }
        LOCKS.put(call, builder.build());
        URLS.put(call, urls);
        say(call, "opened");
    }

    private static Duration time(String ms) {
        return Duration.ofMillis(Long.parseLong(ms));
    }

    private static Options terms(Map<String, String> a) throws Exception {
        var o = Options.defaults();
        for (var e : a.entrySet()) {
            String v = e.getValue();
            switch (e.getKey()) {
                case "ttl" -> o = o.ttl(time(v));
                case "wait" -> o = o.wait(time(v));
                case "min_hold" -> o = o.minHold(time(v));
                case "max_hold" -> o = (Options) Options.class.getMethod("maxHold", Duration.class).invoke(o, time(v));
                case "mode" -> o = o.mode(v);
                case "limit" -> o = o.limit(Integer.parseInt(v));
                case "renew" -> o = o.renew(v.equals("true"));
                default -> { }
            }
        }
        return o;
    }

    private static void lock(String call, Map<String, String> a) throws Exception {
        Lease lease;
        PENDING.put(call, Thread.currentThread());
        try {
            lease = LOCKS.get(a.get("client")).lock(a.get("name"), terms(a));
        } finally {
            PENDING.remove(call);
        }
        LEASES.put(call, lease);
        if (a.containsKey("watch")) {
            background(() -> watch(call, lease));
        }
        say(call, "held " + lease.fence());
    }

    private static void twice(String call, Map<String, String> a) throws InterruptedException {
        var terms = Options.defaults().ttl(Duration.ofMinutes(1)).wait(Duration.ofSeconds(30));
        Lease lease = LOCKS.get(a.get("client")).lock(a.get("name"), terms);
        Locks other = open(URLS.get(a.get("client")));
        var found = new ArrayList<String>();
        for (int i = 0; i < 2; i++) {
            boolean ran = false, held = false;
            try (lease) {
                ran = true;
                var taken = other.tryLock(a.get("name"));
                held = taken.isEmpty();
                taken.ifPresent(Lease::release);
            } catch (RuntimeException e) {
                found.add(held ? "failed" : ran ? "told" : "refused");
                continue;
            }
            found.add(held ? "locked" : "unlocked");
        }
        say(call, String.join(" ", found));
    }

    private static void shared(String call, Map<String, String> a) throws Exception {
        int limit = Integer.parseInt(a.get("limit"));
        Locks mine = LOCKS.get(a.get("client")), other = open(URLS.get(a.get("client")));
        var terms = Options.defaults().ttl(Duration.ofMinutes(1)).wait(Duration.ofSeconds(30)).limit(limit);
        var entered = List.of(new CountDownLatch(1), new CountDownLatch(1));
        var over = List.of(new CountDownLatch(1), new CountDownLatch(1));
        AtomicInteger inside = new AtomicInteger(), most = new AtomicInteger(), ran = new AtomicInteger();
        AtomicInteger raised = new AtomicInteger(), free = new AtomicInteger(-1);
        var users = new ArrayList<Thread>();
        for (int i = 0; i < 2; i++) {
            int n = i;
            users.add(background(() -> {
                try (var lease = mine.lock(a.get("name"), terms)) {
                    lease.check();
                    ran.incrementAndGet();
                    int now = inside.incrementAndGet();
                    most.accumulateAndGet(now, Math::max);
                    entered.get(n).countDown();
                    if (n == 0) {
                        entered.get(1).await(500, TimeUnit.MILLISECONDS);
                    } else {
                        over.get(0).await();
                        var got = new ArrayList<Lease>();
                        for (int j = 0; j < limit; j++) {
                            other.tryLock(a.get("name"), Options.defaults().limit(limit)).ifPresent(got::add);
                        }
                        free.set(got.size());
                        got.forEach(Lease::release);
                    }
                    inside.decrementAndGet();
                } catch (Exception e) {
                    raised.incrementAndGet();
                }
                over.get(n).countDown();
                entered.get(n).countDown();
            }));
            entered.get(0).await();
        }
        for (var u : users) {
            u.join();
        }
        say(call, most + " " + ran + " " + raised + " " + free);
    }

    private static void turns(String call, Map<String, String> a) throws InterruptedException {
        int n = Integer.parseInt(a.get("n")), total = Integer.parseInt(a.get("total"));
        var order = new ArrayList<Integer>();
        var over = new CountDownLatch(1);
        for (int i = 0; i < n; i++) {
            int mine = i;
            background(() -> {
                while (over.getCount() > 0) {
                    try (var lease = LOCKS.get(a.get("client")).lock(a.get("name"), Options.defaults().ttl(Duration.ofMinutes(1)))) {
                        lease.check();
                        synchronized (order) {
                            order.add(mine);
                            if (order.size() >= total) {
                                over.countDown();
                            }
                        }
                    } catch (InterruptedException e) {
                        return;
                    }
                }
            });
        }
        say(call, "started");
        over.await();
        var counts = new int[n];
        synchronized (order) {
            order.subList(0, total).forEach(i -> counts[i]++);
        }
        say(call, "turns " + java.util.Arrays.stream(counts).mapToObj(String::valueOf).collect(Collectors.joining(" ")));
    }

    private static void wrong(String call, Map<String, String> a) throws InterruptedException {
        Locks mine = LOCKS.get(a.get("client"));
        switch (a.get("case")) {
            case "URL" -> open(a.get("url"));
            case "no name" -> mine.lock("");
            case "ttl of nothing" -> mine.lock("wrong", Options.defaults().ttl(Duration.ZERO));
            case "mode of another library" -> mine.lock("wrong", Options.defaults().mode("shared"));
            default -> throw new IllegalStateException("no case " + a.get("case"));
        }
        say(call, "accepted");
    }

    private static void note(String file, String what, Lease lease) throws Exception {
        Files.writeString(Path.of(file + ".history"), what + " " + lease.fence() + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    private static void count(String call, Map<String, String> a) throws Exception {
        String file = a.get("file");
        for (int i = 0; i < Integer.parseInt(a.get("rounds")); i++) {
            try (var lease = LOCKS.get(a.get("client")).lock(a.get("name"), Options.defaults())) {
                note(file, "begin", lease);
                String[] before = Files.readString(Path.of(file)).split(" ");
                if (lease.fence() <= Long.parseLong(before[1])) {
                    throw new IllegalStateException("an older fence");
                }
                Files.writeString(Path.of(file), (Long.parseLong(before[0]) + 1) + " " + lease.fence());
                note(file, "end", lease);
            }
        }
        say(call, "counted");
    }

    private static Thread background(Runnable r) {
        var t = new Thread(r);
        t.setDaemon(true);
        t.start();
        return t;
    }

    private static void make(String call, String word, Map<String, String> a) {
        try {
            switch (word) {
                case "open" -> open(call, a);
                case "lock" -> lock(call, a);
                case "check" -> {
                    LEASES.get(a.get("lease")).check();
                    say(call, "held");
                }
                case "extend" -> {
                    LEASES.get(a.get("lease")).extend(time(a.get("ttl")));
                    say(call, "held");
                }
                case "release" -> {
                    LEASES.get(a.get("lease")).release();
                    say(call, "released");
                }
                case "cancel" -> PENDING.get(a.get("call")).interrupt();
                case "twice" -> twice(call, a);
                case "shared" -> shared(call, a);
                case "turns" -> turns(call, a);
                case "forget" -> {
                    LEASES.remove(a.get("lease"));
                    say(call, "forgotten");
                }
                case "collect" -> {
                    System.gc();
                    say(call, "collected");
                }
                case "wrong" -> wrong(call, a);
                case "count" -> count(call, a);
                default -> throw new IllegalStateException("no call " + word);
            }
        } catch (InterruptedException e) {
            say(call, "cancelled");
        } catch (InvocationTargetException e) {
            say(call, "error " + e.getCause().getClass().getSimpleName() + " " + e.getCause().getMessage());
        } catch (Exception e) {
            say(call, "error " + e.getClass().getSimpleName() + " " + e.getMessage());
        }
    }

    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String[] w = line.split(" ");
            if (w[1].equals("exit")) {
                return;
            }
            var a = new HashMap<String, String>();
            for (String pair : w.length > 2 ? w[2].split("&") : new String[0]) {
                String[] kv = pair.split("=", 2);
                a.put(URLDecoder.decode(kv[0], StandardCharsets.UTF_8), URLDecoder.decode(kv[1], StandardCharsets.UTF_8));
            }
            background(() -> make(w[0], w[1], a));
        }
    }
}
