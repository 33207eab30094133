package io.github.distlock;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.regex.Pattern;

/** One of the servers of a client. What changes belongs to the loop's thread. */
final class Server {
    private static final String UNIX = "http+unix://";

    final String url; // for messages
    final boolean secure;
    final String host;
    final int port;
    final String socket; // the path of a Unix socket, or null
    final String path; // before that of each call
    final String hostHeader;

    final Deque<Connection> idle = new ArrayDeque<>();
    final Set<Call> waits = new LinkedHashSet<>(); // calls that wait for a lock
    final List<Calls> streams = new ArrayList<>(); // connections that take calls as lines
    boolean opening; // one of them is being opened
    long again; // when one may be opened, or 0
    long called; // when the last call for a lock was made
    long answered; // when it gave its last answer; if known
    boolean known;
    int failures; // since then
    long failed; // when the last of them was, if there is one
    boolean probed; // a probe is under way or planned

    private Server(String url, boolean secure, String host, int port, String socket, String path) {
        this.url = url;
        this.secure = secure;
        this.host = host;
        this.port = port;
        this.socket = socket;
        this.path = path;
        hostHeader = socket != null ? "localhost" : port == (secure ? 443 : 80) ? host : host + ":" + port;
    }

    private static final Pattern SHOWN = Pattern.compile("[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/?#]*@)?([^/?#@]*)(?:[/?#][^@]*)?");

    /** Reads a URL. A message has no more of it than the scheme and the host, since the rest may contain a secret. */
    static Server of(String text) {
        String url = Objects.requireNonNull(text, "url").replaceAll("/+$", "");
        try {
            if (url.startsWith(UNIX + "/")) {
                String socket = URLDecoder.decode(url.substring(UNIX.length()).replace("+", "%2B"), StandardCharsets.UTF_8);
                return new Server(UNIX + socket, false, "localhost", 0, socket, "");
            }
            URI u = new URI(url);
            boolean secure = "https".equals(u.getScheme());
            if ((secure || "http".equals(u.getScheme())) && u.getHost() != null && u.getPort() < 1 << 16 && u.getRawUserInfo() == null
                    && u.getRawQuery() == null && u.getRawFragment() == null) {
                int port = u.getPort() >= 0 ? u.getPort() : secure ? 443 : 80;
                return new Server(url, secure, u.getHost(), port, null, URI.create(u.toASCIIString()).getRawPath());
            }
        } catch (URISyntaxException | IllegalArgumentException e) {
            // the message would have the text
        }
        var shown = SHOWN.matcher(url);
        throw new IllegalArgumentException((shown.matches() ? url.substring(0, url.indexOf(':')) + "://" + shown.group(1) : "this")
                + " is no URL of a server: want http://host:7077, https://host or http+unix:///path/to.sock; a token is given by token or tokenFile");
    }

    /** Notes an answer. */
    void hears() {
        failures = 0;
        known = true;
        answered = System.nanoTime();
    }

    /** Looks up its addresses. It may block. */
    List<SocketAddress> addresses() throws IOException {
        if (socket == null) {
            var all = new ArrayList<SocketAddress>();
            for (InetAddress a : InetAddress.getAllByName(host)) {
                all.add(new InetSocketAddress(a, port));
            }
            return all;
        }
        try { // of Java 16 and later
            var c = Class.forName("java.net.UnixDomainSocketAddress");
            return List.of((SocketAddress) c.getMethod("of", String.class).invoke(null, socket));
        } catch (ReflectiveOperationException e) {
            throw new IOException("Unix sockets need Java 16 or later");
        }
    }
}
