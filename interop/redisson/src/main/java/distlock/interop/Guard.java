package distlock.interop;

import java.util.concurrent.TimeUnit;

import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;

/** What lets a thread into the ledger: a lock, a permit, or nothing at all. */
interface Guard {
    /** Waits for the guard and returns its token, 0 if it has none. */
    long enter() throws Exception;

    void leave();

    /** How visits are shared: "alone", "reading" or "counted". */
    String sharing();

    static Guard of(Clients clients, String client, String kind, String name) {
        return switch (kind) {
            case "permit" -> new Permit(clients.semaphore(client, name));
            case "nothing-alone", "nothing-reading", "nothing-counted" -> new Nothing(kind.substring("nothing-".length()));
            default -> new Lock(clients.lock(client, kind, name), kind.equals("read") ? "reading" : "alone");
        };
    }

    record Lock(RLock lock, String sharing) implements Guard {
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

    final class Permit implements Guard {
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

    /** Excludes nobody and has one token for all: the ledger must complain. */
    record Nothing(String sharing) implements Guard {
        @Override
        public long enter() {
            return 7;
        }

        @Override
        public void leave() {
        }
    }
}
