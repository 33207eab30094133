/** Distributed locks of a distlock server. */
module io.github.distlock {
    exports io.github.distlock;
}
