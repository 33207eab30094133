package io.github.distlock;

import java.io.IOException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.util.ArrayDeque;
import java.util.Queue;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The one thread of a client: it reads and writes all connections, and runs all timers. What runs in it never blocks, so
 * a server that hangs holds up no renewal and no deadline. It ends when there is nothing left to do, and starts again with
 * the next task, so a client needs no end.
 */
final class Loop {
    /** What is attached to a key. */
    interface Ready {
        /** Is called when the channel is ready. */
        void ready();
    }

    /** A task at a time of System.nanoTime. Only the loop's thread touches it. */
    final class Timer implements Comparable<Timer> {
        private final long at;
        private final long number;
        private final Runnable task;

        private Timer(long at, Runnable task) {
            this.at = at;
            this.number = ++numbers;
            this.task = task;
        }

        void cancel() {
            timers.remove(this);
        }

        @Override
        public int compareTo(Timer other) {
            return at != other.at ? Long.signum(at - other.at) : Long.signum(number - other.number);
        }
    }

    private static final AtomicInteger THREADS = new AtomicInteger();

    private final TreeSet<Timer> timers = new TreeSet<>();
    private final Queue<Runnable> last = new ArrayDeque<>(); // tasks of the end of a turn
    private long numbers;

    // Guarded by this.
    private Queue<Runnable> tasks = new ArrayDeque<>();
    private Selector selector; // null while there is no thread
    private Thread thread;

    /** Runs a task in the loop's thread, soon. Any thread may call it. */
    synchronized void execute(Runnable task) {
        if (selector == null) {
            start();
        }
        tasks.add(task);
        if (Thread.currentThread() != thread) {
            selector.wakeup();
        }
    }

    private void start() {
        try {
            selector = Selector.open();
        } catch (IOException e) {
            throw new DistlockException.Unavailable("the client can't start: " + e.getMessage());
        }
        Selector s = selector;
        thread = Background.thread("distlock-" + THREADS.incrementAndGet(), () -> run(s));
        try {
            thread.start();
        } catch (Throwable e) {
            selector = null;
            close(s);
            throw e;
        }
    }

    /** Runs a task after a time in ns. Only the loop's thread calls it. */
    Timer after(long delay, Runnable task) {
        var t = new Timer(System.nanoTime() + Math.max(0, delay), task);
        timers.add(t);
        return t;
    }

    /** Runs a task at the end of this turn. Only the loop's thread calls it. */
    void last(Runnable task) {
        last.add(task);
    }

    /** Adds a channel. Only the loop's thread calls it. */
    SelectionKey register(java.nio.channels.SocketChannel channel, Ready ready) throws IOException {
        Selector s;
        synchronized (this) {
            s = selector;
        }
        return channel.register(s, SelectionKey.OP_READ, ready);
    }

    private void run(Selector s) {
        for (;;) {
            try {
                Thread.interrupted(); // whoever does that: it would close each connection
                runTasks();
                runTimers();
                while (!last.isEmpty()) {
                    Background.guarded(last.poll(), "a task");
                }
                if (isOver(s)) {
                    break;
                }
                select(s);
            } catch (Throwable e) { // also if memory is short: the next turn may have enough
                Background.warn("distlock: the loop failed", e);
                Thread.yield();
            }
        }
        close(s);
    }

    private synchronized boolean isOver(Selector s) {
        if (!tasks.isEmpty() || !timers.isEmpty() || !s.keys().isEmpty()) {
            return false;
        }
        selector = null;
        thread = null;
        return true;
    }

    /** Runs the tasks that are there. It has a frame of its own: what waits in run must keep nothing alive. */
    private void runTasks() {
        Queue<Runnable> taken;
        synchronized (this) {
            taken = tasks;
            tasks = new ArrayDeque<>();
        }
        taken.forEach(task -> Background.guarded(task, "a task"));
    }

    private void runTimers() {
        long now = System.nanoTime();
        while (!timers.isEmpty() && timers.first().at - now <= 0) {
            Background.guarded(timers.pollFirst().task, "a timer");
        }
    }

    private void select(Selector s) throws IOException {
        long wait;
        synchronized (this) {
            wait = tasks.isEmpty() ? 30_000 : 0;
        }
        if (!timers.isEmpty()) {
            long left = timers.first().at - System.nanoTime();
            wait = Math.min(wait, left <= 0 ? 0 : left / 1_000_000 + 1);
        }
        if (wait == 0) {
            s.selectNow();
        } else {
            s.select(wait);
        }
        for (SelectionKey key : s.selectedKeys()) {
            Background.guarded(((Ready) key.attachment())::ready, "a connection");
        }
        s.selectedKeys().clear();
    }

    private static void close(Selector s) {
        try {
            s.close();
        } catch (IOException e) {
            // it is not used again
        }
    }
}
