package connlock

import "time"

// vigilTime is how often it is looked whether links live. That sends nothing: it sees that
// the server has closed a connection, and what was silent for too long. For so long two may
// believe to hold where the server ends a connection and gives its lock to another at once.
const vigilTime = 50 * time.Millisecond

// idleTime is how long a link without a hold is kept, if its lease is long enough.
const idleTime = 10 * time.Second

// keepVigil looks after all links until the backend is closed.
func (b *Backend) keepVigil() {
	t := time.NewTicker(vigilTime)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			b.reap()
			for _, s := range b.holding() {
				s.look()
			}
		case <-b.life.Done():
			return
		}
	}
}

// reap closes links that nobody has used for a while.
func (b *Backend) reap() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for lease, idle := range b.idle {
		for _, s := range idle {
			if time.Since(s.idle) > min(lease/3, idleTime) {
				b.remove(s)
				b.discard(s)
			}
		}
	}
}

// holding are the links that have holds.
func (b *Backend) holding() []*session {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*session
	for s := range b.links {
		if len(s.holds) > 0 {
			all = append(all, s)
		}
	}
	return all
}

// look ends the link if the server has, unless somebody is about to find out.
func (s *session) look() {
	select {
	case <-s.lane:
	default:
		return
	}
	defer func() { s.lane <- struct{}{} }()
	if s.isDead() {
		return
	}
	err := s.link.Alive()
	if err == nil && time.Since(s.sent) >= s.limit {
		err = errSilent
	}
	if err != nil {
		s.die(err)
	}
}
