package io.github.distlock;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLEngineResult;
import javax.net.ssl.SSLEngineResult.HandshakeStatus;
import javax.net.ssl.SSLEngineResult.Status;

/** The bytes of a connection, plain here. The channel does not block, except during a handshake. */
class Wire {
    static final int ROOM = 64 << 10; // of the buffer for reads: more than a TLS record has

    final SocketChannel channel;

    Wire(SocketChannel channel) {
        this.channel = channel;
    }

    /** Reads what is there into an empty buffer. Returns -1 at the end. */
    int read(ByteBuffer into) throws IOException {
        return channel.read(into);
    }

    /** Writes as much as goes, and returns whether that is all. */
    boolean write(ByteBuffer from) throws IOException {
        channel.write(from);
        return !from.hasRemaining();
    }

    void close() {
        try {
            channel.close();
        } catch (IOException e) {
            // it is not used again
        }
    }

    /** The bytes of a connection with TLS. */
    static final class Secure extends Wire {
        private static final ByteBuffer NOTHING = ByteBuffer.allocate(0);

        private final SSLEngine engine;
        private final ByteBuffer in; // what was received and not decrypted, from 0 to its position
        private ByteBuffer out; // what was encrypted and not sent, from its position to its limit

        Secure(SocketChannel channel, SSLEngine engine) {
            super(channel);
            this.engine = engine;
            int size = engine.getSession().getPacketBufferSize();
            in = ByteBuffer.allocate(2 * size);
            out = ByteBuffer.allocate(2 * size).flip();
        }

        /** Makes the handshake. It blocks; closing the channel ends it. */
        void handshake() throws IOException {
            engine.beginHandshake();
            var none = ByteBuffer.allocate(engine.getSession().getApplicationBufferSize());
            for (;;) {
                HandshakeStatus status = engine.getHandshakeStatus();
                if (status == HandshakeStatus.NOT_HANDSHAKING || status == HandshakeStatus.FINISHED) {
                    return;
                } else if (status == HandshakeStatus.NEED_TASK) {
                    runTasks();
                } else if (status == HandshakeStatus.NEED_WRAP) {
                    encrypt(NOTHING);
                    flush();
                } else if (decrypt(none).getStatus() == Status.BUFFER_UNDERFLOW && channel.read(in) < 0) {
                    throw new IOException("the connection ended during the TLS handshake");
                }
            }
        }

        @Override
        int read(ByteBuffer into) throws IOException {
            boolean ended = false;
            while (into.remaining() >= engine.getSession().getApplicationBufferSize()) {
                SSLEngineResult r = decrypt(into);
                if (r.getHandshakeStatus() == HandshakeStatus.NEED_TASK) {
                    runTasks();
                } else if (r.getHandshakeStatus() == HandshakeStatus.NEED_WRAP) { // the answer to a change of keys
                    encrypt(NOTHING);
                    flush();
                }
                if (r.getStatus() == Status.CLOSED) {
                    ended = true;
                    break;
                }
                if (r.getStatus() == Status.BUFFER_UNDERFLOW) {
                    int n = channel.read(in);
                    ended = n < 0;
                    if (n <= 0) {
                        break;
                    }
                }
            }
            return into.position() == 0 && ended ? -1 : into.position();
        }

        @Override
        boolean write(ByteBuffer from) throws IOException {
            while (flush()) {
                if (!from.hasRemaining()) {
                    return true;
                }
                if (encrypt(from).getStatus() == Status.CLOSED) {
                    throw new IOException("the server has ended the TLS connection");
                }
            }
            return false;
        }

        private SSLEngineResult decrypt(ByteBuffer into) throws IOException {
            in.flip();
            try {
                return engine.unwrap(in, into);
            } finally {
                in.compact();
            }
        }

        private SSLEngineResult encrypt(ByteBuffer from) throws IOException {
            out.compact();
            try {
                return engine.wrap(from, out);
            } finally {
                out.flip();
            }
        }

        private boolean flush() throws IOException {
            channel.write(out);
            return !out.hasRemaining();
        }

        private void runTasks() {
            for (Runnable task; (task = engine.getDelegatedTask()) != null; ) {
                task.run();
            }
        }
    }
}
