package io.github.distlock;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Several locks that are held. See {@link Locks#lockAll}. */
public final class Leases implements AutoCloseable {
    private final List<Lease> all;

    Leases(List<Lease> all) {
        this.all = List.copyOf(all);
    }

    /**
     * Returns the leases.
     *
     * @return one for each name, in the order of the names
     */
    public List<Lease> all() {
        return all;
    }

    /**
     * Returns if all are held.
     *
     * @throws DistlockException.Lost if one is lost or released
     */
    public void check() {
        all.forEach(Lease::check);
    }

    /**
     * Returns a future that is completed when one of them is lost.
     *
     * @return see {@link Lease#lost()}
     */
    public CompletableFuture<Void> lost() {
        return CompletableFuture.anyOf(all.stream().map(Lease::lost).toArray(CompletableFuture[]::new)).thenApply(x -> null);
    }

    /**
     * Releases all, the last one first.
     *
     * @throws DistlockException the first error, once all are released; the others are suppressed there
     */
    public void release() {
        end(Lease::release);
    }

    /**
     * Releases all, as {@link Lease#close()} does.
     *
     * @throws DistlockException.Lost if one was lost
     */
    @Override
    public void close() {
        end(Lease::close);
    }

    private void end(java.util.function.Consumer<Lease> one) {
        RuntimeException first = null;
        for (var i = new ArrayList<>(all).listIterator(all.size()); i.hasPrevious(); ) {
            try {
                one.accept(i.previous());
            } catch (RuntimeException e) {
                if (first == null) {
                    first = e;
                } else {
                    first.addSuppressed(e);
                }
            }
        }
        if (first != null) {
            throw first;
        }
    }
}
