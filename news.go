package distlock

import "sync"

// news brings a backend's word that a hold is gone to the hold, which may not have
// been made yet.
type news struct {
	mu   sync.Mutex
	gone bool
	h    *hold
}

func (n *news) tell() {
	n.mu.Lock()
	n.gone = true
	h := n.h
	n.mu.Unlock()
	if h != nil {
		go h.lose(errBackend, false)
	}
}

func (n *news) attach(h *hold) {
	n.mu.Lock()
	n.h = h
	gone := n.gone
	n.mu.Unlock()
	if gone {
		h.lose(errBackend, false)
	}
}
