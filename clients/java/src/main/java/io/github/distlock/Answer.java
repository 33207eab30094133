package io.github.distlock;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/** What a server has answered: a fact, "unknown", "unsent" if nothing was taken, or "other" if it is not the server that is meant. */
final class Answer {
    private static final Set<String> FACTS = Set.of("held", "lost", "invalid", "unsupported", "denied", "unsent");
    private static final Set<String> NO_ANSWER = Set.of("unknown", "unsent", "other");

    final String kind;
    final Map<String, Object> body;
    Server from; // null for what no server has answered
    final List<Map<String, Object>> lines = new ArrayList<>(); // of a renewal

    Answer(String kind, Map<String, Object> body) {
        this.kind = kind;
        this.body = body;
    }

    static Answer of(String kind, String detail) {
        return new Answer(kind, Map.of("detail", detail));
    }

    /** Reports whether a server works and has decided. */
    boolean isAnswer() {
        return isAnswer(kind);
    }

    static boolean isAnswer(String kind) {
        return !NO_ANSWER.contains(kind);
    }

    boolean is(String k) {
        return kind.equals(k);
    }

    /** Reports whether the attempt has released its owner, which must make no other one. */
    boolean isSpent() {
        return Boolean.TRUE.equals(body.get("spent"));
    }

    String detail() {
        return String.valueOf(body.get("detail"));
    }

    /** Throws what the answer means if asking again is useless. */
    void failIfFinal() {
        switch (kind) {
            case "invalid":
            case "unsupported":
                throw new DistlockException.Invalid(detail());
            case "denied":
                throw new DistlockException.Denied(detail());
            case "other":
                throw new DistlockException.Unavailable(detail());
            default:
        }
    }

    /** Returns what a line says about a call. */
    @SuppressWarnings("unchecked")
    static Answer of(Call call, String outcome, Map<String, Object> line) {
        boolean ok = outcome.equals("ok");
        var body = (Map<String, Object>) line.get(ok ? "grant" : "problem");
        var answer = new Answer(ok || FACTS.contains(outcome) ? outcome : "unknown", body == null && ok ? Map.of() : Objects.requireNonNull(body));
        answer.from = call.server;
        return answer;
    }

    /**
     * Returns what an answer states as a fact: only one to this request, of a server of the backend that was seen first. A server
     * that does not let a request in says so without its backend's name.
     */
    static Answer judge(Call call, Response r, String backend) {
        String url = call.server.url;
        var body = new LinkedHashMap<String, Object>();
        body.put("detail", url + ": status " + r.status);
        if (!r.header("distlock-request").equals(call.id)) { // a proxy's, or to another request
            body.put("detail", body.get("detail") + ", and not from a distlock server");
            return new Answer("unknown", body);
        }
        var lines = new ArrayList<Map<String, Object>>();
        try {
            boolean each = call.path.equals("/v1/renew") && r.status == 200; // an object in each line
            for (String text : each ? r.body().split("\n") : new String[] {r.body()}) {
                if (!text.isBlank()) {
                    lines.add(Json.object(text));
                }
            }
        } catch (IllegalArgumentException e) {
            return new Answer("unknown", body); // a proxy's
        }
        if (lines.size() == 1) {
            body.putAll(lines.get(0));
        }
        String kind = body.get("distlock") instanceof String ? (String) body.get("distlock") : "unknown";
        String name = r.header("distlock-backend");
        if (r.status == 421 && body.containsKey("distlock")) {
            return of("other", url + ": " + body.get("detail"));
        }
        if (name.isEmpty()) { // the server doesn't know us
            return of(r.status == 401 && kind.equals("denied") ? "denied" : "unknown", url + ": " + body.get("detail"));
        }
        if (backend != null && !name.equals(backend)) {
            return of("other", url + " is before another backend than the first server: " + name + ", not " + backend);
        }
        if (r.status == 200 || r.status == 204 || r.status == Response.UPGRADED && call.path.equals(Call.CALLS)) {
            var answer = new Answer("ok", body);
            answer.lines.addAll(lines);
            answer.from = call.server;
            return answer;
        }
        return new Answer(FACTS.contains(kind) ? kind : "unknown", body);
    }
}
