package distlock.interop;

import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;

/** A connection to the Redis that keeps the checker. */
final class Redis implements AutoCloseable {
    private final Socket socket;
    private final InputStream in;

    Redis(String host, int port) throws IOException {
        socket = new Socket(host, port);
        socket.setTcpNoDelay(true);
        in = new BufferedInputStream(socket.getInputStream());
    }

    /** The answer to a command, which is a number, a text or null. */
    String call(String... words) throws IOException {
        var command = new StringBuilder("*" + words.length + "\r\n");
        for (String word : words) {
            command.append("$" + word.getBytes(StandardCharsets.UTF_8).length + "\r\n" + word + "\r\n");
        }
        socket.getOutputStream().write(command.toString().getBytes(StandardCharsets.UTF_8));
        String line = line();
        return switch (line.charAt(0)) {
            case ':', '+' -> line.substring(1);
            case '$' -> line.equals("$-1") ? null : line();
            default -> throw new IOException("Redis says " + line);
        };
    }

    private String line() throws IOException {
        var line = new StringBuilder();
        for (int c; (c = in.read()) != '\r'; line.append((char) c)) {
            if (c < 0) {
                throw new IOException("Redis has gone");
            }
        }
        in.read();
        return line.toString();
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }
}
