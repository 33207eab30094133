package io.github.distlock;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

/** An answer of HTTP/1.1. */
final class Response {
    static final int UPGRADED = 101;

    final int status;
    private final Map<String, String> headers;
    private final byte[] body;
    final byte[] rest; // what followed it
    boolean keepAlive;

    private Response(int status, Map<String, String> headers, byte[] body, byte[] rest) {
        this.rest = rest;
        this.status = status;
        this.headers = headers;
        this.body = body;
        keepAlive = !header("connection").equalsIgnoreCase("close");
    }

    /** Returns a header by its name in lower case; "" if it is absent. */
    String header(String name) {
        return headers.getOrDefault(name, "");
    }

    String body() {
        return new String(body, StandardCharsets.UTF_8);
    }

    /** Collects the bytes of one answer. */
    static final class Parser {
        private static final int MOST_HEADERS = 64 << 10, MOST = 16 << 20;

        private byte[] text = new byte[1024];
        private int length;
        private int start; // of the body; 0 while the headers are not complete
        private int status;
        private Map<String, String> headers;

        /** Adds bytes. Returns the answer once it is complete. */
        Response add(byte[] more, int n) throws IOException {
            if (length + n > MOST) {
                throw new IOException("the answer is too long");
            }
            if (length + n > text.length) {
                text = Arrays.copyOf(text, Math.max(length + n, 2 * text.length));
            }
            System.arraycopy(more, 0, text, length, n);
            length += n;
            while (start == 0) {
                int end = endOfHeaders();
                if (end < 0) {
                    return null;
                }
                readHeaders(new String(text, 0, end, StandardCharsets.ISO_8859_1).split("\r\n"));
                start = end + 4;
                if (status / 100 == 1 && status != UPGRADED) { // the answer proper follows
                    System.arraycopy(text, start, text, 0, length -= start);
                    start = 0;
                }
            }
            byte[] body = body();
            byte[] rest = status == UPGRADED ? Arrays.copyOfRange(text, start, length) : body;
            return body == null ? null : new Response(status, headers, body, rest);
        }

        private int endOfHeaders() throws IOException {
            for (int i = 0; i + 3 < length; i++) {
                if (text[i] == '\r' && text[i + 1] == '\n' && text[i + 2] == '\r' && text[i + 3] == '\n') {
                    return i;
                }
            }
            want(length < MOST_HEADERS);
            return -1;
        }

        private void readHeaders(String[] lines) throws IOException {
            if (lines[0].equals("HTTP/1.0 400 Bad Request")) {
                throw new IOException("the answer is not HTTP/1.1: a server with TLS wants a URL with https://");
            }
            want(lines[0].matches("HTTP/1\\.1 [1-5]\\d\\d( .*)?"));
            status = Integer.parseInt(lines[0].substring(9, 12));
            headers = new HashMap<>();
            for (int i = 1; i < lines.length; i++) {
                int colon = lines[i].indexOf(':');
                want(colon > 0);
                String name = lines[i].substring(0, colon).toLowerCase(Locale.ROOT);
                String old = headers.put(name, lines[i].substring(colon + 1).trim());
                want(old == null || !name.equals("content-length") && !name.equals("transfer-encoding"));
            }
        }

        /** Returns the body if it is complete, or null. An answer of unknown length is none of a distlock server. */
        private byte[] body() throws IOException {
            if (status == 204 || status == 304 || status == UPGRADED) {
                return new byte[0];
            }
            if (headers.getOrDefault("transfer-encoding", "").equalsIgnoreCase("chunked")) {
                return chunks();
            }
            String size = headers.getOrDefault("content-length", "");
            want(size.matches("\\d{1,9}") && !headers.containsKey("transfer-encoding"));
            int end = start + Integer.parseInt(size);
            want(end <= MOST);
            return length < end ? null : Arrays.copyOfRange(text, start, end);
        }

        private byte[] chunks() throws IOException {
            var body = new ByteArrayOutputStream(length - start);
            for (int at = start; ; ) {
                int end = endOfLine(at);
                if (end < 0) {
                    return null;
                }
                String size = new String(text, at, end - at, StandardCharsets.ISO_8859_1).replaceFirst("[ ;].*", "");
                want(size.matches("[0-9a-fA-F]{1,7}"));
                int n = Integer.parseInt(size, 16);
                if (n == 0) {
                    return endOfTrailers(end + 2) ? body.toByteArray() : null;
                }
                at = end + 2 + n + 2;
                if (length < at) {
                    return null;
                }
                want(text[at - 2] == '\r' && text[at - 1] == '\n');
                body.write(text, end + 2, n);
            }
        }

        private boolean endOfTrailers(int at) {
            for (int end; (end = endOfLine(at)) >= 0; at = end + 2) {
                if (end == at) {
                    return true;
                }
            }
            return false;
        }

        private int endOfLine(int from) {
            for (int i = from; i + 1 < length; i++) {
                if (text[i] == '\r' && text[i + 1] == '\n') {
                    return i;
                }
            }
            return -1;
        }

        private static void want(boolean ok) throws IOException {
            if (!ok) {
                throw new IOException("the answer is not HTTP/1.1");
            }
        }
    }
}
