package io.github.distlock;

import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.Future;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Threads for what may block: callbacks, looking up hosts, opening connections. There are none while there is no such work. */
final class Background {
    /** Runs each task in a thread of its own, or in an idle one. */
    static final Executor THREADS = new ThreadPoolExecutor(0, Integer.MAX_VALUE, 5, TimeUnit.SECONDS, new SynchronousQueue<>(),
            r -> thread("distlock-background", r));

    private static final System.Logger LOG = System.getLogger("io.github.distlock");

    private Background() {}

    /** Runs what a user gave. An error in it harms nothing. */
    static void guarded(Runnable callback, String what) {
        try {
            callback.run();
        } catch (Throwable e) {
            warn("distlock: " + what + " failed", e);
        }
    }

    /** Logs. A log that fails harms nothing: leases need the thread. */
    static void warn(String text, Throwable cause) {
        try {
            LOG.log(System.Logger.Level.WARNING, text, cause);
        } catch (Throwable e) {
            // there is nobody to tell
        }
    }

    /** Makes a daemon thread. */
    static Thread thread(String name, Runnable task) {
        var t = new Thread(task, name);
        t.setDaemon(true);
        t.setContextClassLoader(null); // so that a container can unload an application
        return t;
    }

    /** Waits for a result that comes in bounded time. An interrupt is kept for later. */
    static <T> T await(Future<T> future) throws ExecutionException {
        boolean interrupted = false;
        try {
            for (;;) {
                try {
                    return future.get();
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
