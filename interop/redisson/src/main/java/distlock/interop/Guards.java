package distlock.interop;

import java.util.concurrent.TimeUnit;

import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;

/** Redisson's locks as guards of the checker. */
final class Guards {
    static Guard of(Clients clients, String client, String kind, String name) {
        if (kind.equals("permit")) {
            return new Permit(clients.semaphore(client, name));
        }
        return new Lock(clients.lock(client, kind, name), kind.equals("read") ? "reading" : "alone");
    }

    private record Lock(RLock lock, String sharing) implements Guard {
        @Override
        public long enter() {
            if (lock instanceof RFencedLock fenced) {
                return fenced.lockAndGetToken();
            }
            lock.lock();
            return 0;
        }

        @Override
        public void leave() {
            lock.unlock();
        }
    }

    private static final class Permit implements Guard {
        private final RPermitExpirableSemaphore semaphore;
        private String id;

        Permit(RPermitExpirableSemaphore semaphore) {
            this.semaphore = semaphore;
        }

        @Override
        public long enter() throws InterruptedException {
            id = semaphore.acquire(30, TimeUnit.SECONDS);
            return 0;
        }

        @Override
        public void leave() {
            semaphore.release(id);
        }

        @Override
        public String sharing() {
            return "counted";
        }
    }

    private Guards() {
    }
}
