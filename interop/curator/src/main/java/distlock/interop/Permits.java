package distlock.interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;

/** A semaphore as a lock: each thread has one permit at the most. */
final class Permits implements InterProcessLock {
    private final InterProcessSemaphoreV2 semaphore;
    private final Map<Thread, Lease> held = new ConcurrentHashMap<>();

    Permits(InterProcessSemaphoreV2 semaphore) {
        this.semaphore = semaphore;
    }

    @Override
    public void acquire() throws Exception {
        held.put(Thread.currentThread(), semaphore.acquire());
    }

    @Override
    public boolean acquire(long time, TimeUnit unit) throws Exception {
        Lease lease = semaphore.acquire(time, unit);
        if (lease != null) {
            held.put(Thread.currentThread(), lease);
        }
        return lease != null;
    }

    @Override
    public void release() {
        semaphore.returnLease(held.remove(Thread.currentThread()));
    }

    @Override
    public boolean isAcquiredInThisProcess() {
        return held.containsKey(Thread.currentThread());
    }
}
