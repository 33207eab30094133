package zklock

import (
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/zk"
)

// freshTime is how old a hold gets at least before its node is watched: most are released
// sooner, and need no watch. Those that can be asked for their lock are watched at once.
const freshTime = 100 * time.Millisecond

// guard lets a hold's node be watched soon: somebody may delete it, or ask for the lock.
func (b *Backend) guard(p *place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := p.s
	wants, urgent := p.wantsGuard()
	switch {
	case b.closed || !wants:
		return
	case urgent:
		b.tasks.Go(p.watchOwn)
		return
	}
	s.fresh = append(s.fresh, p)
	if !s.vigil {
		s.vigil = true
		b.tasks.Go(s.keepVigil)
	}
}

// wantsGuard reports whether nobody watches the hold yet, and whether that can't wait. It
// notes that somebody is about to.
func (p *place) wantsGuard() (wants, urgent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wants = p.granted && !p.left && !p.gone && !p.watched && p.held != ""
	p.watched = p.watched || wants
	return wants, p.onRevoke != nil
}

// keepVigil watches nodes as long as there are new ones. Each has been held for a while
// by then.
func (s *session) keepVigil() {
	for {
		s.b.pause(freshTime)
		s.b.mu.Lock()
		ripe := s.ripe
		s.ripe, s.fresh = s.fresh, nil
		s.vigil = len(ripe)+len(s.ripe) > 0
		goesOn := s.vigil
		s.b.mu.Unlock()
		if !goesOn || s.over() {
			return
		}
		s.watchAll(ripe)
	}
}

// watchAll watches nodes, several at a time.
func (s *session) watchAll(places []*place) {
	const width = 64
	slots := make(chan struct{}, width)
	var wg sync.WaitGroup
	for _, p := range places {
		slots <- struct{}{}
		wg.Go(func() {
			p.watchOwn()
			<-slots
		})
	}
	wg.Wait()
}

// watchOwn reads the node of a hold and wants to be told when it changes.
func (p *place) watchOwn() {
	b := p.s.b
	node := p.heldNode()
	if node == "" {
		return
	}
	data, _, _, err := p.s.conn.GetW(b.life, node, func(zk.Event) { p.unwatched(node) })
	switch {
	case err == nil:
		if string(data) == revokeData {
			p.asked()
		}
	case errors.Is(err, zk.ErrNoNode):
		if p.heldNode() == node {
			p.end(true)
			b.drop(p)
		}
	case !sessionOver(err):
		p.unwatched(node)
	}
}

// unwatched lets the node be read and watched again, if it still is the one that holds.
func (p *place) unwatched(node string) {
	p.mu.Lock()
	still := p.held == node
	if still {
		p.watched = false
	}
	p.mu.Unlock()
	if still {
		p.s.b.guard(p)
	}
}

// moves says that the hold is about to have another node: the end of this one is no loss.
func (p *place) moves() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.watched = "", false
}

// stays says that the hold has kept the node, or has got its new one.
func (b *Backend) stays(p *place) {
	p.mu.Lock()
	p.held = p.node
	p.mu.Unlock()
	b.guard(p)
}

// heldNode is the node that holds; empty if the place is no hold, or is being left.
func (p *place) heldNode() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.granted || p.left || p.gone {
		return ""
	}
	return p.held
}

// asked tells the holder once that somebody asks for the lock.
func (p *place) asked() {
	p.mu.Lock()
	onRevoke := p.onRevoke
	if p.revoked || p.left || p.gone {
		onRevoke = nil
	}
	p.revoked = p.revoked || onRevoke != nil
	p.mu.Unlock()
	if onRevoke != nil {
		onRevoke()
	}
}
