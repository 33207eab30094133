package distlock.interop;

import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RList;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * Notices visitors who should not be there together. Go's ledger does the same with the
 * same keys.
 */
final class Ledger {
    private final RAtomicLong inside;
    private final RAtomicLong readers;
    private final RAtomicLong count;
    private final RAtomicLong fence;
    private final RAtomicLong turnovers;
    private final RAtomicLong together;
    private final RBucket<String> side;
    private final RList<String> complaints;
    private final int limit;

    Ledger(RedissonClient c, String name, int limit) {
        inside = c.getAtomicLong(name + ":inside");
        readers = c.getAtomicLong(name + ":readers");
        count = c.getAtomicLong(name + ":count");
        fence = c.getAtomicLong(name + ":fence");
        turnovers = c.getAtomicLong(name + ":turnovers");
        together = c.getAtomicLong(name + ":together");
        side = c.getBucket(name + ":side", StringCodec.INSTANCE);
        complaints = c.getList(name + ":complaints", StringCodec.INSTANCE);
        this.limit = limit;
    }

    void visit(String sharing, long token) {
        switch (sharing) {
            case "alone" -> alone(token);
            case "reading" -> reading();
            default -> counted();
        }
    }

    private void alone(long token) {
        expect(inside.incrementAndGet() == 1, "another was inside");
        expect(readers.get() == 0, "a reader was inside");
        long before = count.get();
        if (token > 0) {
            long last = fence.get();
            expect(token > last, "token " + token + " came after " + last);
            fence.set(token);
        }
        if (!"java".equals(side.getAndSet("java"))) {
            turnovers.incrementAndGet();
        }
        count.set(before + 1);
        inside.decrementAndGet();
    }

    private void reading() {
        if (readers.incrementAndGet() > 1) {
            together.incrementAndGet();
        }
        expect(inside.get() == 0, "a writer was inside");
        expect(count.get() == count.get(), "the count changed while it was read");
        readers.decrementAndGet();
    }

    private void counted() {
        long n = inside.incrementAndGet();
        expect(n <= limit, n + " were inside");
        if (n > 1) {
            together.incrementAndGet();
        }
        count.incrementAndGet();
        inside.decrementAndGet();
    }

    private void expect(boolean kept, String otherwise) {
        if (!kept) {
            complaints.add("java: " + otherwise);
        }
    }
}
