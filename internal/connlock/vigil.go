package connlock

import "time"

// checkInterval is how often it is looked whether links live. That sends nothing: it sees that
// the server has closed a connection, and what was silent for too long. For so long two may
// believe to hold where the server ends a connection and gives its lock to another at once.
const checkInterval = 50 * time.Millisecond

// idleTime is how long a link without a hold is kept, if its lease is long enough.
const idleTime = 10 * time.Second

// watchConns looks after all links until the backend is closed.
func (b *Backend) watchConns() {
	t := time.NewTicker(checkInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			b.closeIdle()
			for _, s := range b.holdingConns() {
				s.loseIfDead()
			}
		case <-b.life.Done():
			return
		}
	}
}

// closeIdle closes links that nobody has used for a while.
func (b *Backend) closeIdle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for lease, idle := range b.idle {
		for _, s := range idle {
			if time.Since(s.idleSince) > min(lease/3, idleTime) {
				b.remove(s)
				b.discard(s)
			}
		}
	}
}

// holdingConns are the links that have holds.
func (b *Backend) holdingConns() []*lockConn {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*lockConn
	for s := range b.conns {
		if len(s.holds) > 0 {
			all = append(all, s)
		}
	}
	return all
}

// loseIfDead ends the link if the server has, unless somebody is about to find out.
func (s *lockConn) loseIfDead() {
	select {
	case <-s.sem:
	default:
		return
	}
	defer func() { s.sem <- struct{}{} }()
	if s.isDead() {
		return
	}
	err := s.conn.Alive()
	if err == nil && time.Since(s.lastSent) >= s.maxSilence {
		err = errSilent
	}
	if err != nil {
		s.lose(err)
	}
}
