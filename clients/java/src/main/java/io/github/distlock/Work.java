package io.github.distlock;

/**
 * Work that needs a lock.
 *
 * @param <T> what it returns
 * @param <E> what it throws
 */
@FunctionalInterface
public interface Work<T, E extends Exception> {
    /**
     * Works while the lock is held.
     *
     * @param lease the hold; work that takes long calls its check before each step
     * @return a result of any kind, also null
     * @throws E if the work fails
     * @throws InterruptedException if the thread is interrupted
     */
    T with(Lease lease) throws E, InterruptedException;
}
