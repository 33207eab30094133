package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/unsent"
)

// Scripts says whether scripts are used. Without them there are exclusive locks only.
type Scripts string

// The choices.
const (
	// ScriptsAuto is the default: Open finds out whether the server lets its user run
	// scripts. With a client that was brought scripts are used.
	ScriptsAuto Scripts = "auto"

	// ScriptsOff is for servers and users that may not run scripts.
	ScriptsOff Scripts = "off"
)

var errNoScripts = fmt.Errorf("%w: the server's user may not run scripts, which all but exclusive locks need", driver.ErrUnsupported)

// scriptless keeps exclusive locks of the layout "string" without scripts. A lock looks as
// scripts write it, so that both keep each other out, under fences of one counter; but
// its value lacks its fence, which is not known yet when the value is written.
type scriptless struct {
	b   *Backend
	rec *recipe
	ferries

	// old: the server has no SET … NX GET, which came with 7.0.
	old atomic.Bool
}

func newScriptless(b *Backend) *scriptless {
	p := &scriptless{b: b, rec: b.layout.recipes[driver.Exclusive]}
	p.build = func(key string) *ferry {
		l := &lane{client: b.client, key: key}
		return &ferry{send: l.send, kept: l.kept, rest: l.rest, doubt: func() { redisconn.Reconnect(b.client, key) }, wait: b.replicas.command()}
	}
	return p
}

// do sends what is for a lock, and for others in its slot.
func (p *scriptless) do(ctx context.Context, name string, l *load) error {
	name = p.b.prefix + name
	return p.of(p.b.client.Slot(name), name).do(ctx, l)
}

// errEnded: a hold ended just before its TTL was to be restarted.
var errEnded = errors.New("it ended while it was taken again")

// acquire makes one attempt, in one round trip; in three, if r's Owner holds already.
func (p *scriptless) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	n, err := p.take(ctx, r)
	if errors.Is(err, errEnded) {
		n, err = p.take(ctx, r)
	}
	if errors.Is(err, driver.ErrHeld) {
		return driver.Grant{}, err
	}
	if err != nil {
		return driver.Grant{}, p.b.fail("acquire", r.Name, err)
	}
	return driver.Grant{Fence: n * p.rec.span, Fences: min(max(r.Fences, 1), p.rec.span), TTL: r.TTL}, nil
}

// take returns the number that the counter gave. What follows the SET is harmless if
// that was refused, or tells by whom.
func (p *scriptless) take(ctx context.Context, r driver.Request) (uint64, error) {
	s, err := p.attempt(ctx, r)
	if err != nil {
		return 0, err
	}
	p.b.hub.answered(r.Owner)
	again := !s.taken && ownedBy(s.value, r.Owner)
	if !s.taken && !again && !isLockString(s.value, s.left) {
		return 0, p.b.noLock(r.Name, noToken(s.left))
	}
	if !s.taken && !again {
		return 0, p.b.refused(ctx, r, []any{s.left, s.value})
	}
	if s.taken && s.queued && s.trouble == nil {
		return 0, p.standBack(ctx, r)
	}
	n, err := p.settle(ctx, r, s, again)
	if err != nil && !again {
		err = p.b.giveBack(ctx, r, err)
	}
	return n, err
}

// giveBack gives up what was taken past those who stand in line, which scripts made. It
// tells the first of them and nobody else: else r's own waiter would come again at once.
func (p *scriptless) standBack(ctx context.Context, r driver.Request) error {
	err := p.b.voice.learn(ctx, p.b.client)
	if err == nil {
		err = p.free(ctx, r.Hold, nil)
	}
	if err != nil && !errors.Is(err, driver.ErrLost) {
		return fmt.Errorf("others stand in line; it is not certain that it was released: %v", err)
	}
	return &driver.HeldError{}
}

// settle does what is left to do for a lock that r's Owner holds, and returns the number
// that the counter gave.
func (p *scriptless) settle(ctx context.Context, r driver.Request, s attempted, again bool) (uint64, error) {
	if s.trouble != nil {
		return 0, s.trouble
	}
	if again {
		err := p.renew(ctx, []driver.Hold{r.Hold})[0]
		if errors.Is(err, driver.ErrLost) {
			return 0, errEnded
		}
		if err != nil {
			return 0, err
		}
	}
	return p.number(ctx, r.Name, s.id)
}

// attempted is what an attempt saw.
type attempted struct {
	taken   bool // just now
	value   string
	left    int64
	queued  bool
	id      string
	trouble error // which makes the lock of no use if it was taken
}

func (p *scriptless) attempt(ctx context.Context, r driver.Request) (attempted, error) {
	name, old := p.b.prefix+r.Name, p.old.Load()
	set := []string{"SET", name, p.b.meta.noteStart(r.Owner, r.Meta), "NX", "PX", millis(r.TTL)}
	commands := [][]string{set, {"GET", name}}
	if !old {
		commands = [][]string{append(set, "GET")}
	}
	l := &load{acked: p.b.replicas.need > 0, commands: append(commands,
		[]string{"PTTL", name}, []string{"EXISTS", p.b.layout.line(name)[0]}, p.draw(r.Name, "*"))}
	if err := p.do(ctx, r.Name, l); err != nil {
		return attempted{}, err
	}
	first := l.answers[0]
	if re, is := redisconn.AsReply(first.Err); is && !old && strings.Contains(re.Text, "syntax error") {
		p.old.Store(true) // and nothing was taken
		return p.attempt(ctx, r)
	}
	if err := p.otherType(r.Name, first.Err); err != nil {
		return attempted{}, err
	}
	if first.Err != nil {
		return attempted{}, unsent.Mark(explain(first.Err))
	}
	if err := redisconn.TransportError(l.answers); err != nil {
		return attempted{}, err
	}
	s := attempted{taken: first.Reply == nil, value: text(first.Reply)}
	rest := l.answers[1:]
	if old {
		s.taken, s.value = first.Reply != nil, text(rest[0].Reply)
		if err := rest[0].Err; err != nil {
			return s, cmp.Or(p.otherType(r.Name, err), explain(err))
		}
		rest = rest[1:]
	}
	s.left, s.queued, s.id = integer(rest[0].Reply), integer(rest[1].Reply) > 0, text(rest[2].Reply)
	s.trouble = explain(redisconn.FirstError(rest))
	if l.acked && s.trouble == nil {
		s.trouble = p.b.replicas.check(l.acks)
	}
	return s, nil
}

// otherType is the error for a key that is no string; nil for other errors.
func (p *scriptless) otherType(name string, err error) error {
	if re, is := redisconn.AsReply(err); !is || !re.HasCode("WRONGTYPE") {
		return nil
	}
	return p.b.noLock(name, "no string")
}

// draw takes an id from the fence counter.
func (p *scriptless) draw(name, id string) []string {
	return []string{"XADD", p.b.layout.counter(p.b.prefix, name), "MAXLEN", "0", id, "", ""}
}

// number is the number of an id. Where the thousand of a millisecond are used up, that
// of the next millisecond is drawn in advance, as scripts do.
func (p *scriptless) number(ctx context.Context, name, id string) (uint64, error) {
	for range maxTries {
		ms, seq, _ := strings.Cut(id, "-")
		if len(seq) < 4 {
			return number64(id)
		}
		n, err := strconv.ParseUint(ms, 10, 63)
		if err != nil {
			return 0, err
		}
		l := &load{commands: [][]string{p.draw(name, strconv.FormatUint(n+1, 10)+"-0"), p.draw(name, "*")}}
		if err := p.do(ctx, name, l); err != nil {
			return 0, err
		}
		// The first is refused if others were quicker.
		if err := l.answers[1].Err; err != nil {
			return 0, explain(err)
		}
		id = text(l.answers[1].Reply)
	}
	return 0, errors.New("the fence counter is used up again and again")
}

// release ends a hold, in two round trips; in three, if somebody stands in line.
func (p *scriptless) release(ctx context.Context, h driver.Hold) error {
	if err := p.b.voice.learn(ctx, p.b.client); err != nil {
		return explain(err)
	}
	return p.free(ctx, h, p.b.voice.publish(p.rec.channel(p.b.prefix+h.Name), "0"))
}

// free ends a hold and sends messages with that, and one to the first in line, if any.
func (p *scriptless) free(ctx context.Context, h driver.Hold, messages [][]string) error {
	name := p.b.prefix + h.Name
	writes := append([][]string{{"DEL", name}, {"LINDEX", p.b.layout.line(name)[0], "0"}}, messages...)
	l := &load{guards: []guard{{key: name, owner: h.Owner, writes: writes}}}
	if err := p.do(ctx, h.Name, l); err != nil {
		return err
	}
	g := &l.guards[0]
	if g.fate == foreign {
		return p.lost(ctx, h.Name)
	}
	if first := text(g.second()); first != "" && l.err == nil {
		// The lock is free by now; who is not told finds out by itself.
		p.do(ctx, h.Name, &load{commands: p.b.voice.publish(p.rec.channel(name)+":"+first, "0")})
	}
	return l.err
}

// lost is the error of a hold that is gone, which only a master knows. A replica refuses
// to write, were it nothing: the fence counter is beyond this.
func (p *scriptless) lost(ctx context.Context, name string) error {
	l := &load{commands: [][]string{p.draw(name, "0-1")}}
	if err := p.do(ctx, name, l); err != nil {
		return err
	}
	err := l.answers[0].Err
	_, is := redisconn.AsReply(err)
	if redisconn.NotExecuted(err) || err != nil && !is {
		return explain(err)
	}
	return driver.ErrLost
}

// renew renews holds of one slot, in two round trips.
func (p *scriptless) renew(ctx context.Context, holds []driver.Hold) []error {
	l := &load{acked: p.b.replicas.need > 0, guards: make([]guard, len(holds))}
	for i, h := range holds {
		name := p.b.prefix + h.Name
		writes := [][]string{{"PEXPIRE", name, millis(h.TTL)}}
		if h.Floor >= p.rec.span {
			writes = append(writes, p.draw(h.Name, p.b.layout.floorID(h.Floor)))
		}
		l.guards[i] = guard{key: name, owner: h.Owner, writes: writes}
		if !h.Shorten {
			l.guards[i].life = inMillis(h.TTL)
		}
	}
	errs := make([]error, len(holds))
	err := p.do(ctx, holds[0].Name, l)
	answered := err == nil
	if answered {
		err = l.err
		if err == nil && l.acked {
			err = p.b.replicas.check(l.acks)
		}
	}
	lost := error(nil)
	for i, h := range holds {
		errs[i] = err
		if answered && l.guards[i].fate == foreign {
			if lost == nil {
				lost = p.lost(ctx, h.Name)
			}
			errs[i] = lost
		}
	}
	return errs
}

func (p *scriptless) renewBatch(ctx context.Context, holds []driver.Hold, x batch, errs []error) {
	picked := make([]driver.Hold, len(x.at))
	for k, i := range x.at {
		picked[k] = holds[i]
	}
	for k, err := range p.renew(ctx, picked) {
		if err != nil && !errors.Is(err, driver.ErrLost) {
			err = fmt.Errorf("redislock: renew: %w", err)
		}
		errs[x.at[k]] = err
	}
}
