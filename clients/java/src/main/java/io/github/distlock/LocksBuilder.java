package io.github.distlock;

import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Consumer;
import javax.net.ssl.SSLContext;

/** Makes a client. */
public final class LocksBuilder {
    private final List<Server> servers = new ArrayList<>();
    private final Map<String, String> meta = new LinkedHashMap<>();
    private String token;
    private Path tokenFile;
    private SSLContext tls;
    private Path certFile;
    private Path keyFile;
    private Path caFile;
    private Consumer<Event> onEvent;
    private int connections = 100;

    LocksBuilder() {
        meta.put("host", host());
        meta.put("pid", String.valueOf(ProcessHandle.current().pid()));
        meta.put("program", System.getProperty("sun.java.command", "java").split(" ")[0]);
    }

    /**
     * Adds servers before one backend. The next one is used when one does not answer or drains.
     *
     * @param urls {@code http://host:port}, {@code https://host} or {@code http+unix:///path/to.sock} (Java 16 or later)
     * @return this
     */
    public LocksBuilder url(String... urls) {
        for (String u : urls) {
            servers.add(Server.of(u));
        }
        return this;
    }

    /**
     * Sets the token that servers want.
     *
     * @param token the token
     * @return this
     */
    public LocksBuilder token(String token) {
        this.token = Objects.requireNonNull(token, "token");
        return this;
    }

    /**
     * Sets a file that has the token. It is read again when a server refuses the token, and for each new connection.
     *
     * @param file the file
     * @return this
     */
    public LocksBuilder tokenFile(Path file) {
        tokenFile = Objects.requireNonNull(file, "file");
        return this;
    }

    /**
     * Sets the context for TLS, in place of files.
     *
     * @param context the context
     * @return this
     */
    public LocksBuilder tls(SSLContext context) {
        tls = Objects.requireNonNull(context, "context");
        return this;
    }

    /**
     * Sets the client's certificate. It is read again for each new connection, as are the other files.
     *
     * @param pem a file with the certificate, and those between it and its root
     * @return this
     */
    public LocksBuilder certFile(Path pem) {
        certFile = Objects.requireNonNull(pem, "pem");
        return this;
    }

    /**
     * Sets the key of the client's certificate.
     *
     * @param pem a file with a key that has no password: PKCS #8, PKCS #1 or SEC 1. It may have the certificate too
     * @return this
     */
    public LocksBuilder keyFile(Path pem) {
        keyFile = Objects.requireNonNull(pem, "pem");
        return this;
    }

    /**
     * Sets whose certificates of servers are trusted, in place of those that Java trusts.
     *
     * @param pem a file with the certificates of one or more authorities
     * @return this
     */
    public LocksBuilder caFile(Path pem) {
        caFile = Objects.requireNonNull(pem, "pem");
        return this;
    }

    /**
     * Adds to what others see of this client's locks: host, pid and program by default.
     *
     * @param key the name of the detail
     * @param value its text; not a secret
     * @return this
     */
    public LocksBuilder meta(String key, String value) {
        meta.put(Objects.requireNonNull(key, "key"), Objects.requireNonNull(value, "value"));
        return this;
    }

    /**
     * Sets what is called with each event, for metrics. Calls come one after the other, in order, from a thread of their own. An error
     * in one harms nothing. If 10,000 events wait for it, further ones are dropped.
     *
     * @param callback the callback
     * @return this
     */
    public LocksBuilder onEvent(Consumer<Event> callback) {
        onEvent = Objects.requireNonNull(callback, "callback");
        return this;
    }

    /**
     * Sets how many requests may be under way at once, beside renewals and calls that share a connection; 100 by default. Half of them
     * may wait for a lock at the server; what waits beyond that does so in turns.
     *
     * @param most at least 2
     * @return this
     */
    public LocksBuilder connections(int most) {
        if (most < 2) {
            throw new IllegalArgumentException("connections is " + most + ": want at least 2");
        }
        connections = most;
        return this;
    }

    /**
     * Makes the client. It connects with the first call.
     *
     * @return the client
     * @throws IllegalArgumentException if something is missing or contradicts something else, or a file can't be used
     */
    public Locks build() {
        want(!servers.isEmpty(), "want at least one URL, such as http://localhost:7077");
        want(token == null || tokenFile == null, "there are a token and a tokenFile: want one of them");
        want((certFile == null) == (keyFile == null), "want both certFile and keyFile, or none");
        boolean files = certFile != null || caFile != null;
        want(tls == null || !files, "there are tls and files of certificates: want one of them");
        want(tls == null && !files || servers.stream().anyMatch(s -> s.secure), "there are certificates, and no URL that begins with https");
        var trust = new Trust(tls, certFile, keyFile, caFile);
        try {
            if (files) {
                trust.context();
            }
        } catch (IOException e) {
            throw new IllegalArgumentException(e.getMessage(), e);
        }
        var loop = new Loop();
        var api = new Api(loop, List.copyOf(servers), new Token(token, tokenFile), trust, connections);
        return new Locks(new Engine(loop, api, Map.copyOf(meta), onEvent));
    }

    private static void want(boolean ok, String what) {
        if (!ok) {
            throw new IllegalArgumentException(what);
        }
    }

    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            return "?";
        }
    }
}
