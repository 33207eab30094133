package io.github.distlock;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads and writes JSON, which the JDK does not. */
final class Json {
    private final String text;
    private int at;
    private int depth;

    private Json(String text) {
        this.text = text;
    }

    /** Returns maps, lists, strings, Longs, Doubles, Booleans and null. Throws IllegalArgumentException for other text. */
    static Object read(String text) {
        var json = new Json(text);
        Object value = json.value();
        json.peek();
        json.want(json.at == text.length());
        return value;
    }

    /** Reads an object. */
    @SuppressWarnings("unchecked")
    static Map<String, Object> object(String text) {
        Object value = read(text);
        if (!(value instanceof Map)) {
            throw new IllegalArgumentException("this is no JSON object");
        }
        return (Map<String, Object>) value;
    }

    /** Writes maps, lists, strings, numbers and booleans. */
    static String write(Object value) {
        if (value instanceof Map) {
            var parts = new ArrayList<String>();
            ((Map<?, ?>) value).forEach((k, v) -> parts.add(write(k) + ":" + write(v)));
            return "{" + String.join(",", parts) + "}";
        }
        if (value instanceof List) {
            var parts = new ArrayList<String>();
            ((List<?>) value).forEach(v -> parts.add(write(v)));
            return "[" + String.join(",", parts) + "]";
        }
        if (!(value instanceof String)) {
            return String.valueOf(value);
        }
        var out = new StringBuilder("\"");
        for (char c : ((String) value).toCharArray()) {
            out.append(c < ' ' || c == '"' || c == '\\' || c > '~' ? String.format("\\u%04x", (int) c) : c);
        }
        return out.append('"').toString();
    }

    private void want(boolean ok) {
        if (!ok) {
            throw new IllegalArgumentException("this is not JSON, from character " + at);
        }
    }

    /** Returns the next character that is not white space; 0 at the end. */
    private char peek() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        return at < text.length() ? text.charAt(at) : 0;
    }

    private boolean took(char c) {
        boolean ok = peek() == c;
        at += ok ? 1 : 0;
        return ok;
    }

    private Object value() {
        want(depth++ < 100);
        try {
            switch (peek()) {
                case '{':
                    return object();
                case '[':
                    return list();
                case '"':
                    return string();
                default:
                    return word();
            }
        } finally {
            depth--;
        }
    }

    private Map<String, Object> object() {
        var map = new LinkedHashMap<String, Object>();
        for (at++; !took('}'); ) {
            want(map.isEmpty() || took(','));
            want(peek() == '"');
            String key = string();
            want(took(':'));
            map.put(key, value());
        }
        return map;
    }

    private List<Object> list() {
        var list = new ArrayList<Object>();
        for (at++; !took(']'); ) {
            want(list.isEmpty() || took(','));
            list.add(value());
        }
        return list;
    }

    private String string() {
        var out = new StringBuilder();
        for (at++; ; ) {
            want(at < text.length());
            char c = text.charAt(at++);
            if (c == '"') {
                return out.toString();
            }
            want(c >= ' ');
            out.append(c == '\\' ? escaped() : c);
        }
    }

    private char escaped() {
        want(at < text.length());
        char c = text.charAt(at++);
        if (c == 'u') {
            want(at + 4 <= text.length() && text.substring(at, at + 4).matches("[0-9a-fA-F]{4}"));
            at += 4;
            return (char) Integer.parseInt(text.substring(at - 4, at), 16);
        }
        int known = "\"\\/bfnrt".indexOf(c);
        want(known >= 0);
        return "\"\\/\b\f\n\r\t".charAt(known);
    }

    private Object word() {
        int start = at;
        while (at < text.length() && ",]}: \t\r\n\"[{".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(start, at);
        switch (word) {
            case "true":
            case "false":
                return word.equals("true");
            case "null":
                return null;
            default:
                want(word.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?"));
                return word.matches("-?[0-9]{1,18}") ? (Object) Long.valueOf(word) : (Object) Double.valueOf(word);
        }
    }
}
