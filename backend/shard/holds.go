package shard

import (
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// holds is until when this backend's Owners may hold at most, and how. It is never asked
// whether somebody holds.
type holds struct {
	mu sync.Mutex
	m  map[string]hold
}

type hold struct {
	mode  driver.Mode
	until time.Time
}

// note enters what may be held from now on.
func (hs *holds) note(owner string, mode driver.Mode, until time.Time) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.m == nil {
		hs.m = map[string]hold{}
	}
	// Two are looked at for each that is added, so that those which ended without a
	// release stay few.
	looks, now := 2, time.Now()
	for owner, h := range hs.m {
		if h.until.Before(now) {
			delete(hs.m, owner)
		}
		if looks--; looks == 0 {
			break
		}
	}
	if h := hs.m[owner]; h.until.After(until) {
		until = h.until // what is asked for now may be refused
	}
	hs.m[owner] = hold{mode, until}
}

func (hs *holds) drop(owner string) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	delete(hs.m, owner)
}

// mode is how owner may hold; 0 if it can't.
func (hs *holds) mode(owner string) driver.Mode {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h, ok := hs.m[owner]; ok && time.Now().Before(h.until) {
		return h.mode
	}
	return 0
}

// any reports whether somebody may hold.
func (hs *holds) any() bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for _, h := range hs.m {
		if time.Now().Before(h.until) {
			return true
		}
	}
	return false
}
