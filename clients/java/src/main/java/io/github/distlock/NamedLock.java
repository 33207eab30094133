package io.github.distlock;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/** A lock as java.util.concurrent knows it: who holds it is a thread. */
final class NamedLock implements Lock {
    private final Locks locks;
    private final String name;
    private final Options options;
    private final Map<Thread, Deque<Lease>> held = new ConcurrentHashMap<>();

    NamedLock(Locks locks, String name, Options options) {
        this.locks = locks;
        this.name = name;
        this.options = options;
    }

    private boolean take(Duration wait) throws InterruptedException {
        try {
            held.computeIfAbsent(Thread.currentThread(), t -> new ArrayDeque<>(1)).push(locks.lock(name, options.wait(wait)));
            return true;
        } catch (DistlockException.Held e) {
            return false;
        } finally {
            held.computeIfPresent(Thread.currentThread(), (t, leases) -> leases.isEmpty() ? null : leases);
        }
    }

    @Override
    public void lock() {
        boolean interrupted = false;
        for (;;) {
            try {
                take(null);
                break;
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        take(null);
    }

    @Override
    public boolean tryLock() {
        boolean interrupted = Thread.interrupted(); // as a try that does not wait
        try {
            return take(Duration.ZERO);
        } catch (InterruptedException e) {
            interrupted = true;
            return false;
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return take(Duration.ofNanos(Math.max(0, unit.toNanos(time))));
    }

    @Override
    public void unlock() {
        Deque<Lease> leases = held.get(Thread.currentThread());
        if (leases == null) {
            throw new IllegalMonitorStateException("this thread does not hold \"" + name + "\"");
        }
        Lease lease = leases.pop();
        if (leases.isEmpty()) {
            held.remove(Thread.currentThread());
        }
        lease.close();
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a distributed lock has no conditions");
    }

    /** Returns the name. */
    @Override
    public String toString() {
        return "Lock[" + name + "]";
    }
}
