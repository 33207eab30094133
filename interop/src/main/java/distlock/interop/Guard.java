package distlock.interop;

/** What lets a thread into the checker: a lock, a permit, or nothing at all. */
interface Guard {
    /** Waits for the guard and returns its token, 0 if it has none. */
    long enter() throws Exception;

    void leave() throws Exception;

    /** How visits are shared: "alone", "reading" or "counted". */
    String sharing();

    /** Excludes nobody and has one token for all: the checker must complain. */
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
