package io.github.distlock;

import static io.github.distlock.Check.expect;
import static io.github.distlock.Check.sleep;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Executors;

/** A server that answers each call by the next of its replies, and by the last one for ever after. */
final class Fake implements AutoCloseable {
    static final String TOKEN = "secret-of-the-tests";

    /** An answer, after a delay; DROP cuts the connection, HANG never answers. */
    record Reply(int status, String body, long delay) {
        Reply(int status, String body) {
            this(status, body, 0);
        }

        Reply late(long millis) {
            return new Reply(status, body, millis);
        }
    }

    record Call(String name, Map<?, ?> body, String token, String backend, int port) {}

    static final Reply DROP = new Reply(-1, ""), HANG = new Reply(-2, ""), RELEASED = new Reply(204, "");
    static final Reply HELD = new Reply(423, """
            {"title": "Locked", "status": 423, "detail": "so it is", "distlock": "held",
             "holders": [{"mode": "exclusive", "fence": "6", "meta": {"program": "job\\n", "pid": "5", "host": "h"}}]}""");

    static Reply grant(long ttl, String fence) {
        return new Reply(200, "{\"fence\":\"" + fence + "\",\"fences\":\"1\",\"ttl_ms\":" + ttl + ",\"waited_ms\":0}\n");
    }

    static final Reply GRANT = grant(30_000, "7");

    static Reply problem(int status, String kind) {
        return new Reply(status, "{\"title\":\"?\",\"status\":" + status + ",\"detail\":\"so it is\",\"distlock\":\"" + kind + "\"}");
    }

    static final Reply RENEWED = new Reply(200, "all"); // each hold of a renewal

    static Reply renewed(String outcome) {
        return new Reply(200, "{\"index\":0,\"outcome\":\"" + outcome + "\"}\n");
    }

    final List<Call> calls = new CopyOnWriteArrayList<>();
    final Map<String, Deque<Reply>> replies = new LinkedHashMap<>();
    final HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    final String backend;
    boolean mixesUp; // answers to one request with answers to others

    Fake(String backend, Reply... acquire) throws IOException {
        this.backend = backend;
        on("acquire", acquire).on("release", RELEASED);
        server.createContext("/v1/", this::serve);
        server.setExecutor(Executors.newCachedThreadPool(r -> {
            var t = new Thread(r);
            t.setDaemon(true);
            return t;
        }));
        server.start();
    }

    Fake(Reply... acquire) throws IOException {
        this("fake", acquire);
    }

    Fake on(String call, Reply... all) {
        synchronized (replies) {
            replies.put(call, new ArrayDeque<>(Arrays.asList(all)));
        }
        return this;
    }

    private void serve(HttpExchange e) throws IOException {
        String call = e.getRequestURI().getPath().substring("/v1/".length());
        if (call.equals("calls")) { // as a proxy that does not know it
            e.sendResponseHeaders(404, -1);
            e.close();
            return;
        }
        var body = (Map<?, ?>) Json.read(new String(e.getRequestBody().readAllBytes(), StandardCharsets.UTF_8));
        calls.add(new Call(call, body, e.getRequestHeaders().getFirst("Authorization"), e.getRequestHeaders().getFirst("Distlock-Backend"),
                e.getRemoteAddress().getPort()));
        Reply r;
        synchronized (replies) {
            var rest = replies.get(call);
            r = rest.size() > 1 ? rest.poll() : rest.peek();
        }
        if (r == HANG) {
            return;
        }
        sleep(r.delay);
        if (r != DROP) {
            String id = mixesUp ? "of another" : e.getRequestHeaders().getFirst("Distlock-Request");
            e.getResponseHeaders().set("Distlock-Request", id);
            if (backend != null) {
                e.getResponseHeaders().set("Distlock-Backend", backend);
            }
            byte[] text = (r == RENEWED ? lines((List<?>) body.get("holds")) : r.body).getBytes(StandardCharsets.UTF_8);
            e.sendResponseHeaders(r.status, text.length == 0 ? -1 : text.length);
            e.getResponseBody().write(text);
        }
        e.close();
    }

    private static String lines(List<?> holds) {
        var all = new StringBuilder();
        for (int i = 0; i < holds.size(); i++) {
            all.append("{\"index\":").append(i).append(",\"outcome\":\"ok\"}\n");
        }
        return all.toString();
    }

    String url() {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    Locks locks() {
        return Locks.builder().url(url()).token(TOKEN).build();
    }

    List<Map<?, ?>> of(String call) {
        var all = new ArrayList<Map<?, ?>>();
        calls.stream().filter(c -> c.name.equals(call)).forEach(c -> all.add(c.body));
        return all;
    }

    void oneOwner() {
        var owners = new HashSet<>();
        calls.forEach(c -> owners.add(c.body.get("owner")));
        expect(owners.size(), 1);
    }

    @Override
    public void close() {
        server.stop(0);
    }
}
