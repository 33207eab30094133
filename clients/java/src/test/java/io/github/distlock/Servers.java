package io.github.distlock;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Real servers before one backend, and hosts that give no answer. The test's process ends them all. */
final class Servers {
    static final Options OPTIONS = Options.defaults(), TRY = OPTIONS.wait(Duration.ZERO);

    static Real server; // for the tests that do nothing to it

    private static String command; // the path of distlock
    private static String backend; // the URL of the backend
    private static final AtomicInteger NAMES = new AtomicInteger();
    private static final List<Process> ALL = new ArrayList<>();

    private Servers() {}

    static void begin(String commandPath, String backendUrl) throws IOException {
        command = commandPath;
        backend = backendUrl;
        server = new Real();
        Runtime.getRuntime().addShutdownHook(new Thread(Servers::killAll));
    }

    static String name() {
        return "java/" + ProcessHandle.current().pid() + "/" + NAMES.incrementAndGet();
    }

    static Options ttl(long millis) {
        return OPTIONS.ttl(Duration.ofMillis(millis));
    }

    /** Takes a lock, which has to be free, and releases it. */
    static void free(Locks locks, String name) throws Exception {
        locks.lock(name, TRY).close();
    }

    /** Returns once all leases were renewed, or one is lost, which is an error. */
    static void awaitRenewals(List<Lease> leases) throws InterruptedException {
        var ends = new ArrayList<Long>();
        for (Lease l : leases) {
            ends.add(System.nanoTime() + l.remaining().toNanos());
        }
        Check.eventually(() -> {
            for (int i = 0; i < ends.size(); i++) {
                Lease l = leases.get(i);
                if (l.lost().isDone()) {
                    return true;
                }
                if (System.nanoTime() + l.remaining().toNanos() < ends.get(i) + 1_000_000_000L) {
                    return false;
                }
            }
            return true;
        });
        leases.forEach(Lease::check);
    }

    /** A server in a process of its own. */
    static final class Real {
        private final List<String> arguments;
        private Process process;
        final String address;

        /** Starts one that listens at an address, with further flags. */
        Real(String listen, String... flags) throws IOException {
            arguments = new ArrayList<>(List.of(command, "serve", "--url", backend, "--log", "off"));
            arguments.addAll(Arrays.asList(flags));
            address = start(listen);
        }

        Real() throws IOException {
            this("127.0.0.1:0");
        }

        private String start(String listen) throws IOException {
            var args = new ArrayList<>(arguments);
            args.addAll(List.of("--listen", listen));
            process = new ProcessBuilder(args).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            synchronized (ALL) {
                ALL.add(process);
            }
            String line = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
            if (line == null) {
                throw new IOException("the server does not start");
            }
            return line.split(" ")[0];
        }

        String url() {
            return "http://" + address;
        }

        void kill() {
            process.destroyForcibly();
            process.onExit().join();
        }

        /** Starts it again where it was. */
        void restart(String... moreFlags) throws IOException {
            kill();
            arguments.addAll(Arrays.asList(moreFlags));
            for (int tries = 1;; tries++) {
                try {
                    start(address);
                    return;
                } catch (IOException e) { // its port may be a client's for a moment
                    if (tries == 100) {
                        throw e;
                    }
                    Check.sleep(10);
                }
            }
        }

        void signal(String name) throws IOException, InterruptedException {
            new ProcessBuilder("kill", "-" + name, String.valueOf(process.pid())).start().waitFor();
        }
    }

    private static void killAll() {
        synchronized (ALL) {
            ALL.forEach(Process::destroyForcibly);
        }
    }

    /** A host that does something odd with each connection. */
    static final class Odd implements AutoCloseable {
        final ServerSocket socket = new ServerSocket(0, 100, InetAddress.getLoopbackAddress());
        final AtomicInteger connections = new AtomicInteger();
        private final List<Socket> kept = new ArrayList<>();

        /** Accepts, and gives no answer; or ends each connection at once. */
        Odd(boolean ends) throws IOException {
            Background.thread("odd host", () -> {
                try {
                    for (;;) {
                        Socket s = socket.accept();
                        connections.incrementAndGet();
                        if (ends) {
                            s.setSoLinger(true, 0);
                            s.close();
                        }
                        kept.add(s);
                    }
                } catch (IOException e) {
                    // closed
                }
            }).start();
        }

        String url() {
            return "http://127.0.0.1:" + socket.getLocalPort();
        }

        @Override
        public void close() throws IOException {
            socket.close();
        }
    }

    /** A host that is off: its queue of connections is full, so that what is sent to it is dropped. */
    static final class Off implements AutoCloseable {
        private final ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        private final List<SocketChannel> fill = new ArrayList<>();

        Off() throws IOException {
            for (int i = 0; i < 8; i++) {
                var c = SocketChannel.open();
                c.configureBlocking(false);
                c.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), socket.getLocalPort()));
                fill.add(c);
            }
        }

        String url() {
            return "http://127.0.0.1:" + socket.getLocalPort();
        }

        @Override
        public void close() throws IOException {
            socket.close();
            for (var c : fill) {
                c.close();
            }
        }
    }

    /** Returns how long it takes to run work, in multiples of a second as it passes for a thread that sleeps beside it. */
    static double seconds(Check.Work work) throws Exception {
        var turns = new AtomicInteger();
        var clock = Background.thread("yardstick", () -> {
            try {
                for (;;) {
                    TimeUnit.MILLISECONDS.sleep(50);
                    turns.incrementAndGet();
                }
            } catch (InterruptedException e) {
                // it is over
            }
        });
        clock.start();
        work.run();
        clock.interrupt();
        return turns.get() / 20.0;
    }
}
