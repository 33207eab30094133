package io.github.distlock;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/** Reads and writes JSON, which the JDK does not. */
final class Json {
    private static final char[] HEX = "0123456789abcdef".toCharArray();
    private static final Pattern NUMBER = Pattern.compile("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?");

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

    /** Writes maps, lists, strings, numbers and booleans, in ASCII. A StringBuilder is JSON already. */
    static String write(Object value) {
        var out = new StringBuilder(256);
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map) {
            char before = '{';
            for (var e : ((Map<?, ?>) value).entrySet()) {
                write(e.getKey(), out.append(before));
                write(e.getValue(), out.append(':'));
                before = ',';
            }
            out.append(before == '{' ? "{}" : "}");
        } else if (value instanceof List) {
            char before = '[';
            for (Object v : (List<?>) value) {
                write(v, out.append(before));
                before = ',';
            }
            out.append(before == '[' ? "[]" : "]");
        } else if (value instanceof String) {
            write((String) value, out);
        } else {
            out.append(value);
        }
    }

    private static void write(String text, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c < ' ' || c == '"' || c == '\\' || c > '~') {
                out.append("\\u").append(HEX[c >> 12]).append(HEX[c >> 8 & 15]).append(HEX[c >> 4 & 15]).append(HEX[c & 15]);
            } else {
                out.append(c);
            }
        }
        out.append('"');
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
                want(NUMBER.matcher(word).matches());
                return word.length() < 19 && word.chars().noneMatch(c -> c > '9' || c == '.') ? (Object) Long.valueOf(word) : (Object) Double.valueOf(word);
        }
    }
}
