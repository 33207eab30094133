package distlock

import (
	"sync"

	"github.com/distlock/distlock/internal/renew"
)

// news brings a backend's word to the hold that it is about, which may not have been
// made yet: that the hold is gone, or that somebody asks for the lock.
type news struct {
	mu   sync.Mutex
	wish bool // it is that somebody asks for the lock
	come bool
	h    *hold
}

func (n *news) tell() {
	n.mu.Lock()
	n.come = true
	h := n.h
	n.mu.Unlock()
	if h != nil {
		go n.bring(h)
	}
}

func (n *news) attach(h *hold) {
	n.mu.Lock()
	n.h = h
	come := n.come
	n.mu.Unlock()
	switch {
	case come && n.wish:
		go n.bring(h) // it calls the user
	case come:
		n.bring(h)
	}
}

func (n *news) bring(h *hold) {
	if n.wish {
		h.tellRevoked()
		return
	}
	h.Lose(renew.ErrGone, false)
}
