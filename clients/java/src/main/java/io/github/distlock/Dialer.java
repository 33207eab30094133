package io.github.distlock;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ProtocolFamily;
import java.net.SocketAddress;
import java.net.StandardProtocolFamily;
import java.net.StandardSocketOptions;
import java.net.UnknownHostException;
import java.nio.channels.SocketChannel;
import java.util.function.BiConsumer;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLException;

/** The opening of one connection, in a thread of its own: looking up a host, connecting and a TLS handshake may block. */
final class Dialer {
    private final Server server;
    private final Trust trust;
    private SocketChannel channel; // that is being opened; guarded by this
    private boolean ended; // guarded by this
    private final int millis; // for all addresses together
    private String failure = "the host has no address";

    Dialer(Server server, Trust trust, int millis) {
        this.millis = millis;
        this.server = server;
        this.trust = trust;
    }

    /** Opens, and gives done the connection, or null and the reason. It runs until then, or until end. */
    void dial(BiConsumer<Wire, String> done) {
        Wire wire = null;
        try {
            var addresses = server.addresses();
            for (int i = 0; i < addresses.size() && wire == null; i++) {
                try {
                    wire = open(addresses.get(i), millis / addresses.size());
                } catch (IOException | RuntimeException e) {
                    failure = describe(e);
                    end(false);
                }
            }
        } catch (IOException | RuntimeException e) {
            failure = describe(e);
        }
        done.accept(wire, failure);
    }

    /** Ends the opening. */
    void end() {
        end(true);
    }

    private synchronized void end(boolean forEver) {
        ended |= forEver;
        if (channel != null) {
            try {
                channel.close();
            } catch (IOException e) {
                // it is not used again
            }
            channel = null;
        }
    }

    private Wire open(SocketAddress address, int most) throws IOException {
        var c = begin(address);
        if (address instanceof InetSocketAddress) {
            c.setOption(StandardSocketOptions.TCP_NODELAY, true);
            c.socket().connect(address, Math.max(1, most));
        } else {
            c.connect(address);
        }
        Wire wire = new Wire(c);
        if (server.secure) {
            SSLEngine engine = trust.context().createSSLEngine(server.host.replaceAll("[\\[\\]]", ""), server.port);
            engine.setUseClientMode(true);
            var parameters = engine.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            engine.setSSLParameters(parameters);
            var secure = new Wire.Secure(c, engine);
            secure.handshake();
            wire = secure;
        }
        c.configureBlocking(false);
        synchronized (this) {
            channel = null; // it is its user's now
        }
        return wire;
    }

    private SocketChannel begin(SocketAddress address) throws IOException {
        var c = address instanceof InetSocketAddress ? SocketChannel.open() : openUnix();
        synchronized (this) {
            if (!ended) {
                channel = c;
                return c;
            }
        }
        c.close();
        throw new IOException("no connection in time");
    }

    private static SocketChannel openUnix() throws IOException {
        try { // of Java 16 and later
            return (SocketChannel) SocketChannel.class.getMethod("open", ProtocolFamily.class)
                    .invoke(null, StandardProtocolFamily.valueOf("UNIX"));
        } catch (ReflectiveOperationException | IllegalArgumentException e) {
            throw new IOException("Unix sockets need Java 16 or later");
        }
    }

    /** Describes what went wrong with a connection. */
    static String describe(Exception e) {
        if (e instanceof java.nio.channels.ClosedChannelException) {
            return "no connection in time";
        }
        if (e instanceof UnknownHostException) {
            return "the host is not known";
        }
        if (e instanceof SSLException && String.valueOf(e.getMessage()).contains("nrecognized SSL message")) {
            return "the server does not speak TLS: one without wants a URL with http://";
        }
        if (e instanceof SSLException || e.getMessage() == null) {
            return e.getClass().getSimpleName() + (e.getMessage() == null ? "" : ": " + e.getMessage());
        }
        return e.getMessage();
    }
}
