package io.github.distlock;

import static io.github.distlock.Check.eventually;
import static io.github.distlock.Check.expect;
import static io.github.distlock.Check.fails;
import static io.github.distlock.Check.that;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Function;
import java.util.stream.Collectors;

/** Tests connections on which each call is a line. LocksTest runs them. */
final class CallsTest {
    private static final Options OPTIONS = Options.defaults(), TRY = OPTIONS.wait(Duration.ZERO);
    private static final String GRANT = "{\"fence\":\"7\",\"fences\":\"1\",\"ttl_ms\":30000,\"waited_ms\":0}";
    private static final String OK = "\"outcome\":\"ok\",\"grant\":" + GRANT, RELEASED = "\"outcome\":\"ok\"";

    private static String problem(String kind, int status) {
        return "\"outcome\":\"" + kind + "\",\"problem\":{\"title\":\"?\",\"status\":" + status + ",\"detail\":\"so it is\",\"distlock\":\"" + kind + "\"}";
    }

    /** A server whose requests are always granted and released, and whose lines get the answers that a test gives, if any. */
    private static final class Lines implements AutoCloseable {
        final ServerSocket socket = new ServerSocket(0, 100, InetAddress.getLoopbackAddress());
        final List<String> requests = new CopyOnWriteArrayList<>(), tokens = new CopyOnWriteArrayList<>();
        final List<Map<String, Object>> lines = new CopyOnWriteArrayList<>();
        final List<Socket> streams = new CopyOnWriteArrayList<>();
        volatile String upgrade = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: distlock-calls\r\nConnection: Upgrade\r\n";
        volatile boolean keepsBack; // lines
        volatile Function<Map<String, Object>, String> answer = line -> line.containsKey("acquire") ? OK : RELEASED;

        Lines() throws IOException {
            Background.thread("lines", () -> {
                try {
                    for (;;) {
                        Socket s = socket.accept();
                        Background.thread("lines of one", () -> serve(s)).start();
                    }
                } catch (IOException e) {
                    // closed
                }
            }).start();
        }

        private void serve(Socket s) {
            try (s) {
                var in = new BufferedReader(new InputStreamReader(s.getInputStream(), StandardCharsets.ISO_8859_1));
                for (String first; (first = in.readLine()) != null; ) {
                    int length = 0;
                    String id = "";
                    for (String h; !(h = in.readLine()).isEmpty(); ) {
                        length = h.startsWith("Content-Length: ") ? Integer.parseInt(h.substring(16)) : length;
                        id = h.startsWith("Distlock-Request: ") ? h.substring(18) : id;
                        if (h.startsWith("Authorization: ")) {
                            tokens.add(h);
                        }
                    }
                    in.skip(length);
                    requests.add(first.split(" ")[1].replaceFirst("/v1/?", ""));
                    String ours = "Distlock-Request: " + id + "\r\nDistlock-Backend: fake\r\n";
                    if (first.startsWith("GET /v1/calls ")) {
                        streams.add(s);
                        say(s, upgrade + ours + "\r\n");
                        if (upgrade.contains(" 101 ")) {
                            lines(s, in);
                            return;
                        }
                    } else if (first.contains("/release ")) {
                        say(s, "HTTP/1.1 204 No Content\r\n" + ours + "\r\n");
                    } else {
                        say(s, "HTTP/1.1 200 OK\r\nContent-Length: " + GRANT.length() + "\r\n" + ours + "\r\n" + GRANT);
                    }
                }
            } catch (IOException e) {
                // the client has gone
            }
        }

        private void lines(Socket s, BufferedReader in) throws IOException {
            for (String text; (text = in.readLine()) != null; ) {
                var line = Json.object(text);
                String said = null;
                if (line.size() > 1) {
                    lines.add(line);
                    said = line.containsKey("leave") ? problem("unsent", 503) : answer.apply(line);
                } else if (!keepsBack) { // the first one asks for a line
                    said = problem("invalid", 400);
                }
                if (said != null) {
                    say(s, "{\"index\":" + line.get("index") + "," + said + "}\n");
                }
            }
        }

        static void say(Socket s, String text) throws IOException {
            OutputStream out = s.getOutputStream();
            synchronized (s) {
                out.write(text.getBytes(StandardCharsets.US_ASCII));
            }
        }

        String url() {
            return "http://127.0.0.1:" + socket.getLocalPort();
        }

        /** Returns a client whose calls are lines from now on. */
        Locks locks() throws Exception {
            var locks = Locks.of(url());
            eventually(() -> {
                try {
                    locks.lock("before", TRY).close();
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
                return !lines.isEmpty();
            });
            requests.clear();
            lines.clear();
            return locks;
        }

        List<Map<?, ?>> of(String call) {
            return lines.stream().filter(l -> l.containsKey(call)).map(l -> (Map<?, ?>) l.get(call)).collect(Collectors.toList());
        }

        @Override
        public void close() throws IOException {
            socket.close();
            for (Socket s : streams) {
                s.close();
            }
        }
    }

    private static boolean isOf(Map<String, Object> line, String name) {
        return line.get("acquire") instanceof Map && name.equals(((Map<?, ?>) line.get("acquire")).get("name"));
    }

    private static long owners(Lines s, String call) {
        return s.of(call).stream().map(l -> l.get("owner")).distinct().count();
    }

    /** Many that wait for one lock leave others their place in the queue: no wait has a slot, and a full connection is followed by another. */
    static void waitsAreLines() throws Exception {
        try (var s = new Lines()) {
            s.answer = line -> isOf(line, "stuck") ? null : line.containsKey("acquire") ? OK : RELEASED;
            var locks = s.locks();
            var waits = new ArrayList<CompletableFuture<Lease>>();
            for (int i = 0; i < 2000; i++) {
                waits.add(locks.lockAsync("stuck", OPTIONS.ttl(Duration.ofSeconds(60))));
            }
            eventually(() -> owners(s, "acquire") == 2000 || s.requests.contains("acquire"));
            locks.lock("free", OPTIONS).close();
            expect(owners(s, "acquire"), 2001L);
            expect(owners(s, "release"), 1L);
            that(s.of("acquire").stream().allMatch(a -> a.get("wait_ms").equals(20_000L)));
            expect(s.streams.size(), 3);
            waits.forEach(w -> w.cancel(true));
            eventually(() -> owners(s, "release") + s.requests.stream().filter("release"::equals).count() >= 2001);
            eventually(() -> s.lines.stream().filter(l -> l.containsKey("leave")).count() >= 2000);
        }
    }

    /** Each of these costs one request, and no call. */
    static void whatPassesNoLines() throws Exception {
        for (String odd : List.of("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "")) {
            try (var s = new Lines()) {
                s.keepsBack = odd.isEmpty();
                s.upgrade = odd.isEmpty() ? s.upgrade : odd;
                var locks = Locks.of(s.url());
                for (int i = 0; i < 50; i++) {
                    locks.lock("x", OPTIONS).close();
                }
                eventually(() -> s.requests.contains("calls"));
                for (int i = 0; i < 50; i++) {
                    locks.lock("x", OPTIONS).close();
                }
                expect(s.requests.stream().filter("calls"::equals).count(), 1L);
                expect(s.lines.size(), 0);
            }
        }
    }

    static void endDuringCalls() throws Exception {
        try (var s = new Lines()) {
            var locks = s.locks();
            s.answer = line -> line.containsKey("acquire") ? null : RELEASED;
            var wait = locks.lockAsync("x", OPTIONS);
            eventually(() -> s.of("acquire").size() == 1);
            s.streams.get(0).close();
            wait.get().close(); // by requests, or another connection
            that(s.requests.contains("acquire"));
        }
    }

    /** A line without an index is about the connection: it has no more calls, and those under way are answered. */
    static void drains() throws Exception {
        try (var s = new Lines()) {
            var locks = s.locks();
            s.answer = line -> isOf(line, "x") ? null : RELEASED;
            var wait = locks.lockAsync("x", OPTIONS);
            eventually(() -> s.of("acquire").size() == 1);
            Lines.say(s.streams.get(0), "{\"index\":0," + problem("unsent", 503) + "}\n");
            locks.lock("y", OPTIONS).close();
            that(!wait.isDone());
            Lines.say(s.streams.get(0), "{\"index\":" + s.lines.get(0).get("index") + "," + OK + "}\n");
            wait.get().close();
            expect(s.of("acquire").size(), 1);
            eventually(() -> s.streams.get(0).isClosed());
        }
    }

    static void factsInLines() throws Exception {
        try (var s = new Lines()) {
            var locks = s.locks();
            for (var e : Map.of("held", DistlockException.Held.class, "invalid", DistlockException.Invalid.class, "denied", DistlockException.Denied.class).entrySet()) {
                s.answer = line -> problem(e.getKey(), 423);
                fails(e.getValue(), () -> locks.lock("x", TRY));
            }
            s.answer = line -> line.containsKey("acquire") ? OK : problem("lost", 410);
            fails(DistlockException.Lost.class, () -> locks.lock("x", TRY).close());
            expect(s.requests, List.of());
        }
    }

    static void whatIsNoAnswer() throws Exception {
        for (String odd : List.of("\"outcome\":\"held\"", "\"outcome\":7", "\"x\":1", "\"outcome\":\"ok\",\"grant\":7", "\"outcome\":\"ok\"},{")) {
            try (var s = new Lines()) {
                var locks = s.locks();
                s.answer = line -> odd;
                locks.lock("x", OPTIONS).close(); // by a request
                that(s.requests.contains("acquire"));
            }
        }
    }

    /** A refused token may be an old one: a request finds out. */
    static void tokenOfAConnection() throws Exception {
        try (var s = new Lines()) {
            var locks = s.locks();
            s.answer = line -> line.containsKey("acquire") ? problem("denied", 401) : RELEASED;
            locks.lock("x", OPTIONS).close();
            expect(s.requests.get(0), "acquire");
        }
    }

    /** Too long for a line, which would end the connection. */
    static void longCalls() throws Exception {
        try (var s = new Lines()) {
            var locks = s.locks();
            locks.lock("x", TRY.meta("long", "x".repeat(70_000))).close();
            expect(s.requests, List.of("acquire"));
            expect(s.of("release").size(), 1);
        }
    }
}
