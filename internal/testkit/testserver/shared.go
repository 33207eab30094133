package testserver

import "sync"

// shared is something that all tests of the process use: the first that asks for it has it
// started, and it ends with the process.
type shared[T interface{ end() }] struct {
	mu      sync.Mutex
	it      T
	started bool
}

// get is what start has made, now or before. A start that fails ends its test only.
func (s *shared[T]) get(start func() T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.it = start()
		s.started = true
		atExit(s.it.end)
	}
	return s.it
}
