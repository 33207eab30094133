package io.github.distlock;

import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import java.util.Objects;
import java.util.function.BooleanSupplier;

/** Runs tests, which are the static methods of a class without parameters, and checks what they see. */
final class Check {
    private Check() {}

    interface Work {
        void run() throws Exception;
    }

    static void expect(Object got, Object want) {
        if (!Objects.equals(got, want)) {
            throw new AssertionError("got " + got + ", want " + want);
        }
    }

    static void that(boolean ok) {
        expect(ok, true);
    }

    static <E extends Exception> E fails(Class<E> with, Work work) throws Exception {
        try {
            work.run();
        } catch (Exception e) {
            if (with.isInstance(e)) {
                return with.cast(e);
            }
            throw e;
        }
        throw new AssertionError("no " + with.getSimpleName());
    }

    static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    static void eventually(BooleanSupplier ok) throws InterruptedException {
        while (!ok.getAsBoolean()) {
            Thread.sleep(1);
        }
    }

    /** Runs the tests whose names are given, or all, and ends the process. */
    static void run(String[] only, Class<?>... classes) {
        int failed = 0, ran = 0;
        for (var m : Arrays.stream(classes).flatMap(c -> Arrays.stream(c.getDeclaredMethods())).toList()) {
            if (m.getParameterCount() > 0 || m.getReturnType() != void.class || m.isSynthetic()
                    || only.length > 0 && !Arrays.asList(only).contains(m.getName())) {
                continue;
            }
            ran++;
            try {
                long start = System.nanoTime();
                m.invoke(null);
                System.out.printf("ok   %s %.1f s%n", m.getName(), (System.nanoTime() - start) / 1e9);
            } catch (InvocationTargetException e) {
                failed++;
                System.out.println("FAIL " + m.getName());
                e.getCause().printStackTrace(System.out);
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(e);
            }
        }
        System.out.printf("%d tests, %d failed%n", ran, failed);
        System.exit(failed == 0 && ran >= Math.max(only.length, 1) ? 0 : 1);
    }
}
