package redislock

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
)

// guard changes a key if it is Owner's, for servers that run no scripts: on one trip the
// key is watched and read, on the next one the change is made unless somebody else has
// changed the key in between.
type guard struct {
	key, owner string

	// writes are the change. The first answers 0 if the key is gone.
	writes [][]string

	// life is the TTL in ms of the PEXPIRE that the first write is. It is sent with what
	// is left if that is more, because a renewal may arrive late. Zero: the writes are
	// sent as they are.
	life int64

	fate    guardFate
	results []any // of the writes
}

// second is the result of the second write.
func (g *guard) second() any {
	if len(g.results) < 2 {
		return nil
	}
	return g.results[1]
}

type guardFate uint8

const (
	unsure guardFate = iota
	owned
	foreign
)

// maxTries is how often a load is compared again because a key was changed meanwhile.
// Its own keys are hardly ever: only if they end, or are taken away.
const maxTries = 5

var (
	errChanging = errors.New("the lock was changed again and again while it was looked at")
	errGivenUp  = errors.New("the connection was given up again and again between a look and the change")
)

// ownedBy reports whether the value of a plain lock is owner's. An owner that is not
// ours is the whole value, as Inspect shows it.
func ownedBy(value, owner string) bool {
	return value == owner || len(owner) == ownerLen && strings.HasPrefix(value, owner+" ")
}

// pending are the guards of which nothing is known yet.
func (l *load) pending() []*guard {
	var list []*guard
	for i := range l.guards {
		if l.guards[i].fate == unsure {
			list = append(list, &l.guards[i])
		}
	}
	return list
}

// group is how many of those who wait are compared together: one who has tried in vain,
// or several.
func (f *ferry) group() int {
	keys := 0
	for n, l := range f.comparing {
		if n > 0 && (l.alone || f.comparing[0].alone || keys+len(l.guards) > batchSize) {
			return n
		}
		keys += len(l.guards)
	}
	return len(f.comparing)
}

// beginGuards watches and reads the keys of the next group.
func (f *ferry) beginGuards(t *trip) {
	n := f.group()
	if n == 0 {
		return
	}
	f.watched, f.comparing = f.comparing[:n:n], f.comparing[n:]
	for _, l := range f.watched {
		guards := l.pending()
		watch, get := []string{"WATCH"}, []string{"MGET"}
		for _, g := range guards {
			watch, get = append(watch, g.key), append(get, g.key)
		}
		t.add(nil, append([][]string{watch, get}, lefts(guards)...), func(got []redisconn.Answer) {
			if redisconn.TransportError(got) != nil {
				return // see loseGuards
			}
			l.see(guards, got)
			if l.err != nil || len(l.pending()) == 0 {
				t.end(l)
			}
		})
	}
}

// lefts asks for what is left of the lives that must not become shorter.
func lefts(guards []*guard) (commands [][]string) {
	for _, g := range guards {
		if g.life > 0 {
			commands = append(commands, []string{"PTTL", g.key})
		}
	}
	return commands
}

// see compares what the keys have with what they should.
func (l *load) see(guards []*guard, got []redisconn.Answer) {
	for _, a := range got {
		if a.Err != nil {
			l.err = explain(a.Err)
			return
		}
	}
	values, ok := got[1].Reply.([]any)
	if !ok || len(values) != len(guards) {
		l.err = errAnswer
		return
	}
	left := got[2:]
	for i, g := range guards {
		if value, is := values[i].(string); !is || !ownedBy(value, g.owner) {
			g.fate = foreign
		}
		if g.life > 0 {
			g.writes[0][2] = strconv.FormatInt(max(g.life, integer(left[0].Reply)), 10)
			left = left[1:]
		}
	}
}

// finishGuards makes the changes of those whose keys are watched. Nothing else is sent
// on the connection between the two.
func (f *ferry) finishGuards(t *trip) {
	if f.watched == nil {
		return
	}
	commands := [][]string{{"MULTI"}}
	var loads []*load
	for _, l := range f.watched {
		if l.err != nil || len(l.pending()) == 0 {
			continue
		}
		loads = append(loads, l)
		for _, g := range l.pending() {
			commands = append(commands, g.writes...)
		}
	}
	f.watched = nil
	if len(loads) == 0 {
		t.add(nil, [][]string{{"UNWATCH"}}, func([]redisconn.Answer) {})
		return
	}
	t.loads = append(t.loads, loads...)
	t.add(nil, append(commands, []string{"EXEC"}), func(got []redisconn.Answer) { f.executed(t, loads, got) })
}

// executed reads the answers to a transaction.
func (f *ferry) executed(t *trip, loads []*load, got []redisconn.Answer) {
	results, done := got[len(got)-1].Reply.([]any)
	err := redisconn.FirstError(got)
	_, refused := redisconn.AsReply(err) // and nothing was done
	for _, l := range loads {
		switch {
		case done:
			results = l.apply(results)
		case err == nil, refused && len(loads) > 1:
			if l.tries++; l.tries < maxTries {
				// What stood in the way may be another's key.
				l.alone = true
				f.comparing = append(f.comparing, l)
				continue
			}
			l.err = errChanging
		default:
			l.err = explain(err)
		}
		t.end(l)
	}
}

// apply reads the results of l's writes, and returns those of others.
func (l *load) apply(results []any) []any {
	for _, g := range l.pending() {
		if len(results) < len(g.writes) {
			l.err = errAnswer
			return nil
		}
		g.fate = owned
		if results[0] == int64(0) {
			g.fate = foreign
		}
		g.results = results[:len(g.writes)]
		for _, r := range g.results {
			if err, is := r.(error); is && !isLess(err) {
				l.err = fmt.Errorf("not all was done: %w", err)
			}
		}
		results = results[len(g.writes):]
	}
	return results
}

// isLess: the fence counter is not raised to what it exceeds.
func isLess(err error) bool { return strings.Contains(err.Error(), "equal or smaller") }

// loseGuards: the next trip goes on another connection, which watches nothing. Nothing was
// changed, so they look again.
func (f *ferry) loseGuards(err error) {
	for _, l := range f.watched {
		switch {
		case l.err != nil || len(l.pending()) == 0: // it has ended
		case l.tries < maxTries && !l.gone.Load():
			l.tries++
			f.comparing = append(f.comparing, l)
		default:
			l.err = err
			close(l.done)
		}
	}
	f.watched = nil
}
