package io.github.distlock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** The token of a client, which may be in a file. No message contains it. */
final class Token {
    private final Path file;
    private volatile String value; // null: none

    /** Takes a token or a file, or null and null. */
    Token(String value, Path file) {
        this.file = file;
        this.value = value;
        if (value != null && !isToken(value)) {
            throw new IllegalArgumentException("the token: want ASCII letters, digits and signs, without spaces");
        }
        if (file != null) {
            try {
                this.value = read();
            } catch (IOException e) {
                throw new IllegalArgumentException("the token's file: " + e, e);
            }
        }
    }

    String value() {
        return value;
    }

    boolean isInFile() {
        return file != null;
    }

    /** Reads the file again. A file that has no token now changes nothing. It may block. */
    void reread() {
        if (file != null) {
            try {
                value = read();
            } catch (IOException e) {
                // the one that is known may still do
            }
        }
    }

    private String read() throws IOException {
        String text = Files.readString(file).trim();
        if (!isToken(text)) {
            throw new IOException(file + " has no token: want ASCII letters, digits and signs, without spaces");
        }
        return text;
    }

    private static boolean isToken(String s) {
        return s.matches("[!-~]+");
    }
}
