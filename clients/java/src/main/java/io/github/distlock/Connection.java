package io.github.distlock;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;

/** A connection to a server, which carries one request at a time. Only the loop's thread uses it. */
final class Connection implements Loop.Ready {
    /** Gets the answer, or why there is none. */
    interface Receiver {
        void received(Response answer, String failure);
    }

    final Server server;
    private final Wire wire;
    private final Runnable ended;
    private final ByteBuffer buffer;
    private SelectionKey key;
    private ByteBuffer request;
    private Response.Parser parser;
    private Receiver receiver; // null while the connection is idle
    private Loop.Timer idle;
    private Calls calls; // null: it is HTTP's

    /** Takes over an open channel. ended is called if the connection ends while it is idle. */
    Connection(Server server, Wire wire, Loop loop, ByteBuffer buffer, java.util.function.Consumer<Connection> ended) throws IOException {
        this.server = server;
        this.wire = wire;
        this.buffer = buffer;
        this.ended = () -> ended.accept(this);
        key = loop.register(wire.channel, this);
    }

    /** Sends a request. */
    void send(byte[] text, Receiver to) {
        stay(null);
        parser = new Response.Parser();
        receiver = to;
        send(text);
    }

    /** Leaves HTTP. */
    void become(Calls c) {
        calls = c;
    }

    boolean isSent() {
        return request == null;
    }

    void send(byte[] text) {
        request = ByteBuffer.wrap(text);
        try {
            write();
        } catch (IOException e) {
            end(e);
        }
    }

    /** Sets, or ends, the timer of an idle connection. */
    void stay(Loop.Timer until) {
        if (idle != null) {
            idle.cancel();
        }
        idle = until;
    }

    void close() {
        stay(null);
        receiver = null;
        wire.close(); // also cancels the key
    }

    @Override
    public void ready() {
        try {
            if (request != null && key.isValid() && key.isWritable()) {
                write();
            }
            if (key.isValid() && key.isReadable()) {
                read();
            }
        } catch (IOException | RuntimeException e) {
            end(e);
        }
    }

    private void write() throws IOException {
        boolean all = wire.write(request);
        int wanted = all ? SelectionKey.OP_READ : SelectionKey.OP_READ | SelectionKey.OP_WRITE;
        if (key.interestOps() != wanted) {
            key.interestOps(wanted);
        }
        if (all) {
            request = null;
            if (calls != null) {
                calls.flush();
            }
        }
    }

    private void read() throws IOException {
        for (boolean more = true; more; ) {
            buffer.clear();
            int n = wire.read(buffer);
            if (n == 0) {
                return;
            }
            if (n > 0 && calls != null) {
                calls.received(buffer.array(), n);
                more = key.isValid() && (server.secure || n == buffer.capacity());
                continue;
            }
            if (n < 0 || receiver == null) { // an idle connection has nothing to say
                throw new IOException("the server has ended the connection");
            }
            Response answer = parser.add(buffer.array(), n);
            more = answer == null;
            if (answer != null) {
                Receiver to = receiver;
                receiver = null;
                if (request != null) { // an answer before the request was sent
                    answer.keepAlive = false;
                }
                to.received(answer, null);
            }
        }
    }

    private void end(Exception why) {
        Receiver to = receiver;
        close();
        if (calls != null) {
            calls.end(Dialer.describe(why));
        } else if (to == null) {
            ended.run();
        } else {
            to.received(null, Dialer.describe(why));
        }
    }
}
