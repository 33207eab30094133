package main

import (
	"slices"
	"sync"
)

// journal stands for a table that survives every host.
type journal struct {
	mu           sync.Mutex
	began, ended []int // ticks
	fatal        int   // the tick at which the first host dies; 0 for none
}

func (j *journal) done(tick int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Contains(j.ended, tick)
}

func (j *journal) begin(tick int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.began = append(j.began, tick)
}

func (j *journal) end(tick int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = append(j.ended, tick)
}

// dies reports, once, whether the calling host dies at the tick.
func (j *journal) dies(tick int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if tick != j.fatal {
		return false
	}
	j.fatal = 0
	return true
}
