package sqlrow

import (
	"context"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

const (
	slice     = 5 * time.Second // how long a bell is listened to before the row is looked at again
	markLife  = 3 * slice       // what is said in the row holds for so long
	firstPoll = 5 * time.Millisecond
	maxPoll   = 100 * time.Millisecond
	patience  = 5 * time.Second // with the database
)

// listener looks at one row, and hears its bells, for all who wait for it in this
// backend. It lives as long as anybody does, and to the end of what it is listening to:
// a lock that is fought for is waited for again at once.
type listener struct {
	hub  *hub
	key  Key
	name string
	ear  Ear
	poll time.Duration
	rev  int64 // as last seen

	// Guarded by the hub's mutex.
	watches map[*watch]struct{}
	live    bool // what may let somebody in is signalled
	stale   bool // the row should be looked at again
	stop    context.CancelFunc
}

func newListener(h *hub, k Key, name string) *listener {
	return &listener{
		hub: h, key: k, name: name, ear: h.b.listen(k),
		watches: map[*watch]struct{}{}, poll: firstPoll,
	}
}

// deaf is the ear of a backend without a bell.
type deaf struct{}

func (deaf) Arm(context.Context) error                        { return nil }
func (deaf) Hear(context.Context, string) (rang, silent bool) { return false, true }
func (deaf) Close()                                           {}

func (b *Backend) listen(k Key) Ear {
	if b.bell == nil {
		return deaf{}
	}
	return b.bell.Listen(k)
}

func (l *listener) run() {
	defer l.ear.Close()
	for !l.hub.deserted(l) {
		tag, silent, err := l.look()
		l.tell(err)
		l.hear(tag, silent || err != nil)
	}
}

// hear waits for what makes another look at the row worthwhile.
func (l *listener) hear(tag string, silent bool) {
	ctx, cancel := context.WithTimeout(l.hub.b.ctx, slice)
	defer cancel()
	if l.outdated(cancel) {
		return
	}
	rang := false
	if !silent {
		rang, silent = l.ear.Hear(ctx, tag)
	}
	switch {
	case rang:
		l.hub.signal(l)
	case silent:
		l.rest(ctx)
	}
}

// outdated reports whether the last look came too early; if not, a nudge calls stop.
func (l *listener) outdated(stop context.CancelFunc) bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.stop = stop
	return l.stale
}

// nudge makes the listener look at the row. The hub's mutex is held.
func (l *listener) nudge() {
	l.stale = true
	if l.stop != nil {
		l.stop()
	}
}

// rest waits for the next look at a row of which nothing is heard.
func (l *listener) rest(ctx context.Context) {
	t := time.NewTimer(l.poll)
	defer t.Stop()
	l.poll = min(2*l.poll, maxPoll)
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// look reads the row, in which it says that somebody listens, and signals those whom
// nobody is in the way of. The tag is that of the bell to listen to.
func (l *listener) look() (tag string, silent bool, err error) {
	l.refresh()
	silent = l.arm() != nil
	ctx, cancel := context.WithTimeout(l.hub.b.ctx, patience)
	defer cancel()
	s, err := l.readMarked(ctx)
	if err != nil {
		return "", false, err
	}
	if s.row.Rev != l.rev {
		l.rev, l.poll = s.row.Rev, firstPoll
	}
	tag, found := l.foremost(s)
	return tag, silent || !found, nil
}

// arm has a time of its own: who can't hear can look.
func (l *listener) arm() error {
	ctx, cancel := context.WithTimeout(l.hub.b.ctx, patience)
	defer cancel()
	return l.ear.Arm(ctx)
}

func (l *listener) refresh() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.stale = false
}

// readMarked reads the row as it is when it says that somebody listens.
func (l *listener) readMarked(ctx context.Context) (*state, error) {
	b := l.hub.b
	s, err := b.look(ctx, l.name)
	if err != nil || b.bell == nil || s.row.Rev == 0 || s.row.Waiting > (s.now+int64(markLife/2))/micro {
		return s, err
	}
	if err := b.dialect.Mark(ctx, l.key, markLife); err != nil {
		return nil, err
	}
	return b.look(ctx, l.name)
}

// foremost signals the watches that nobody is in the way of, and finds the bell for the
// one that fewest are in the way of: those behind it are woken by its own release, here.
func (l *listener) foremost(s *state) (tag string, found bool) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	var ahead []claims.Claim
	var mode driver.Mode
	for w := range l.watches {
		blockers := s.Blockers(w.request)
		if len(blockers) == 0 {
			w.wake()
		} else if ahead == nil || len(blockers) < len(ahead) {
			ahead, mode = blockers, w.request.Mode
		}
	}
	return bellOf(ahead, mode)
}

// bellOf is the bell to listen to. Whom all must make way for can wait for the last of
// them; a permit may come from any, so there must not be several bells.
func bellOf(ahead []claims.Claim, mode driver.Mode) (tag string, found bool) {
	if len(ahead) == 0 {
		return "", false
	}
	tag = ahead[len(ahead)-1].Bell
	for _, c := range ahead {
		if mode == driver.Counted && c.Bell != tag {
			return "", false
		}
	}
	return tag, true
}

// tell answers those who wait to be armed.
func (l *listener) tell(err error) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.live = err == nil
	for w := range l.watches {
		w.arm(err)
	}
}

// wake signals all. The hub's mutex is held.
func (l *listener) wake() {
	for w := range l.watches {
		w.wake()
	}
}
