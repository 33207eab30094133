package redislock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// halfTTL is the life of the holds in these tests, that they wait for.
const halfTTL = 3 * time.Second

// keeping is how locks are kept.
type keeping struct {
	name   string
	layout Layout
	off    bool // without scripts
	plain  bool // free locks are taken without a script
}

var keepings = []keeping{{name: "string", layout: String}, {name: "plain", layout: String, plain: true}, {name: "redisson", layout: Redisson}, {name: "scripts=off", layout: String, off: true}}

func (w keeping) String() string { return w.name }

func (w keeping) open(t testing.TB, url string) *Backend {
	b := openAt(t, url+"?timeout="+tooLong.String()+"&layout="+string(w.layout)+"&scripts="+map[bool]string{true: "off", false: "auto"}[w.off], Options{})
	if s, is := b.storage.(*uncontended); is && !w.plain {
		b.storage = s.scripted
	} else if is {
		s.acquires.Store(true)
	}
	return b
}

func (w keeping) modes() []driver.Mode {
	if w.off {
		return []driver.Mode{driver.Exclusive}
	}
	return allModes
}

// halfStep is a call of which a part is refused.
type halfStep struct {
	name string
	// prepare makes what is there before the call, and returns the call's request.
	prepare func(l *halfLab, r driver.Request) driver.Request
	call    func(b *Backend, r driver.Request) error
	modes   func(m driver.Mode) bool
	queue   bool // the layout must have one for the mode
}

// halfLab has a user whose rights are withdrawn, and one who has all.
type halfLab struct {
	*testing.T
	keeping
	srv     *testserver.RedisServer
	user, b *Backend
	raw     *redis.Client
	cells   []*halfCell
	faults  []string
}

func (l *halfLab) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// halfCell is a name for which a call was refused in part.
type halfCell struct {
	what string
	r    driver.Request
}

func (l *halfLab) acquire(r driver.Request) driver.Request { acquire(l, l.b, r); return r }

func (l *halfLab) wait(r driver.Request) driver.Request {
	r.Queue = true
	refused(l, l.b, r, driver.ErrHeld)
	return r
}

// blocks returns a request whose hold keeps r out.
func (l *halfLab) blocks(r driver.Request) driver.Request {
	other := halfRequest(r.Name, r.Mode)
	if r.Mode == driver.Read {
		other.Mode = driver.Write
	}
	other.Limit, r.Limit = 1, 1
	return other
}

func halfRequest(name string, mode driver.Mode) driver.Request {
	r := request(name, mode)
	r.TTL, r.Limit, r.Meta = halfTTL, 1, map[string]string{"k": "v"}
	return r
}

func try(b *Backend, r driver.Request) error {
	_, err := b.Acquire(context.Background(), r)
	return err
}

func give(b *Backend, r driver.Request) error { return b.Release(context.Background(), r.Hold) }

func keep(b *Backend, r driver.Request) error {
	return b.Renew(context.Background(), []driver.Hold{r.Hold})[0]
}

func shares(m driver.Mode) bool { return !m.Alone() }

var halfSteps = []halfStep{
	{name: "take", call: try},
	{name: "again", call: try, prepare: (*halfLab).acquire},
	{name: "join", call: try, modes: shares, prepare: func(l *halfLab, r driver.Request) driver.Request {
		r.Limit = 2
		other := halfRequest(r.Name, r.Mode)
		other.Limit = 2
		l.acquire(other)
		return r
	}},
	{name: "after an end", call: try, modes: shares, prepare: func(l *halfLab, r driver.Request) driver.Request {
		r.Limit = 2
		short, long := halfRequest(r.Name, r.Mode), halfRequest(r.Name, r.Mode)
		short.Limit, long.Limit, short.TTL = 2, 2, 10*time.Millisecond
		l.acquire(long)
		l.acquire(short)
		time.Sleep(15 * time.Millisecond)
		return r
	}},
	{name: "downgrade", call: try, modes: func(m driver.Mode) bool { return m == driver.Read }, prepare: func(l *halfLab, r driver.Request) driver.Request {
		r.Mode = driver.Write
		l.acquire(r)
		r.Mode = driver.Read
		return r
	}},
	{name: "queue", call: try, queue: true, prepare: func(l *halfLab, r driver.Request) driver.Request {
		l.acquire(l.blocks(r))
		r.Queue = true
		return r
	}},
	{name: "stay", call: try, queue: true, prepare: func(l *halfLab, r driver.Request) driver.Request {
		l.acquire(l.blocks(r))
		return l.wait(r)
	}},
	{name: "switch", call: try, queue: true, modes: func(m driver.Mode) bool { return m == driver.Read }, prepare: func(l *halfLab, r driver.Request) driver.Request {
		l.acquire(l.blocks(r))
		r.Mode = driver.Write
		r = l.wait(r)
		r.Mode = driver.Read
		return r
	}},
	{name: "turn", call: try, queue: true, prepare: func(l *halfLab, r driver.Request) driver.Request {
		first := l.acquire(l.blocks(r))
		r = l.wait(r)
		must.OK(l, l.b.Release(l.Context(), first.Hold))
		return r
	}},
	{name: "release", call: give, prepare: (*halfLab).acquire},
	{name: "release one", call: give, modes: shares, prepare: func(l *halfLab, r driver.Request) driver.Request {
		r.Limit = 2
		other := halfRequest(r.Name, r.Mode)
		other.Limit, other.TTL = 2, halfTTL/2
		l.acquire(other)
		return l.acquire(r)
	}},
	{name: "release to a waiter", call: give, queue: true, prepare: func(l *halfLab, r driver.Request) driver.Request {
		l.acquire(r)
		l.wait(l.blocks(r))
		return r
	}},
	{name: "leave", call: give, queue: true, prepare: func(l *halfLab, r driver.Request) driver.Request {
		l.acquire(l.blocks(r))
		return l.wait(r)
	}},
	{name: "renew", call: keep, prepare: (*halfLab).acquire},
}

// hasCell reports whether a keeping has a step for a mode.
func (l *halfLab) hasStep(s halfStep, mode driver.Mode) bool {
	return (s.modes == nil || s.modes(mode)) && (!s.queue || l.b.caps.QueueingOf(mode) != driver.QueueNever)
}

// refusals are what a server refuses: a command, or all that write.
func (l *halfLab) refusals(commands []string) map[string][2][]string {
	all := map[string][2][]string{
		"memory":   {{"CONFIG", "SET", "maxmemory", "1"}, {"CONFIG", "SET", "maxmemory", "0"}},
		"snapshot": {{"CONFIG", "SET", "save", "3600 1"}, {"CONFIG", "SET", "save", ""}},
	}
	for _, c := range commands {
		all[c] = [2][]string{{"ACL", "SETUSER", "some", "-" + c}, {"ACL", "SETUSER", "some", "+" + c}}
	}
	return all
}

// run makes the calls of a step, each with another part refused.
func (l *halfLab) run(s halfStep, mode driver.Mode) {
	prepared := func() driver.Request {
		r := halfRequest("", mode)
		if s.prepare != nil {
			r = s.prepare(l, r)
		}
		return r
	}
	_ = s.call(l.user, prepared()) // loads the script
	r := prepared()
	usage(l, l.srv)
	_ = s.call(l.user, r)
	_, used := usage(l, l.srv)
	for refusal, change := range l.refusals(slices.Collect(maps.Keys(used))) {
		what := fmt.Sprintf("%v %s %s without %s", l.keeping, mode, s.name, refusal)
		r := prepared()
		must.Get(l.srv.Do(change[0]...))(l)
		err := s.call(l.user, r)
		must.Get(l.srv.Do(change[1]...))(l)
		if errors.Is(err, driver.ErrLost) || driver.Final(err) {
			l.fault("%s: %v", what, err)
		}
		if keeps := s.name == "renew" || strings.HasPrefix(s.name, "release") || s.name == "leave"; keeps && refusal == "memory" && !l.off && err != nil {
			l.fault("%s: %v", what, err)
		}
		l.check(s, what, r)
		l.cells = append(l.cells, &halfCell{what, r})
	}
}

// check looks at what the refused call left.
func (l *halfLab) check(s halfStep, what string, r driver.Request) {
	if strings.HasPrefix(s.name, "release") || s.name == "leave" {
		if err := l.b.Release(l.Context(), r.Hold); err != nil && !errors.Is(err, driver.ErrLost) {
			l.fault("%s: repeated: %v", what, err)
		}
		l.released(s, what, r)
	}
	if s.name == "again" || s.name == "downgrade" {
		l.heldOn(what, r)
	}
	for _, key := range must.Get(l.raw.Keys(l.Context(), "*"+r.Name+"*").Result())(l) {
		ofJava := strings.HasPrefix(key, "redisson_lock_") || r.Mode == driver.Counted && l.layout == Redisson && !strings.HasSuffix(key, ":distlock")
		if ttl := l.raw.PTTL(l.Context(), key).Val(); ttl == -1 && !ofJava {
			l.fault("%s: %s stays for ever: %s", what, key, content(l.Context(), l.raw, key))
		} else if ttl > 5*halfTTL {
			l.fault("%s: %s stays for %v", what, key, ttl)
		}
	}
}

// heldOn wants an Owner that held to hold still, and a writer alone.
func (l *halfLab) heldOn(what string, r driver.Request) {
	err, writer := keep(l.b, r), r
	if writer.Mode = driver.Write; r.Mode == driver.Read && err != nil {
		if err = keep(l.b, writer); try(l.b, halfRequest(r.Name, driver.Read)) == nil {
			l.fault("%s: a reader is let in beside the writer", what)
		}
	}
	if err != nil {
		l.fault("%s: the hold: %v", what, err)
	}
}

// released looks at whether what was released is free.
func (l *halfLab) released(s halfStep, what string, r driver.Request) {
	info := must.Get(l.b.Inspect(l.Context(), r.Name))(l)
	if is := func(h driver.Holder) bool { return h.Owner == r.Owner }; slices.ContainsFunc(info.Holders, is) || slices.ContainsFunc(info.Waiters, is) {
		l.fault("%s: released, and there still: %+v", what, info)
	}
	if s.name != "release" {
		return
	}
	next := halfRequest(r.Name, l.alone(r.Mode))
	if err := try(l.b, next); err != nil {
		l.fault("%s: released, and not free: %v", what, err)
		return
	}
	must.OK(l, l.b.Release(l.Context(), next.Hold))
}

// alone returns a mode that is granted if nothing is held.
func (l *halfLab) alone(mode driver.Mode) driver.Mode {
	switch {
	case l.layout == String:
		return driver.Exclusive
	case mode == driver.Read:
		return driver.Write
	}
	return mode
}

// Redis does not undo what a script has done when it refuses one of its commands: for want of a right, of memory, or of a
// snapshot. For each call, and each command of it that is refused until it is repeated: no key stays without an end, all is
// free after one TTL, and what a release answers is so.
func TestRefusedInPart(t *testing.T) {
	for _, k := range keepings {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			l := newHalfLab(t, k)
			for _, mode := range k.modes() {
				l.runAll(mode)
			}
			l.freeAfterOneTTL()
			for _, fault := range l.faults {
				t.Error(fault)
			}
		})
	}
}

// The test above notices scripts whose commands have another order.
func TestRefusedInPartCatchesMistakes(t *testing.T) {
	text, java := keepings[0], keepings[2]
	for name, m := range map[string]struct {
		keeping
		edits []edit
	}{
		"the marker comes first, without an end": {text, []edit{{driver.Read, "redis.call('PEXPIREAT', KEYS[1], last)", "redis.call('SET', KEYS[1], marker)"}}},
		"a place comes before its end":           {text, []edit{{driver.Exclusive, "redis.call('PEXPIRE', queue, life)\n  redis.call('ZADD'", "redis.call('RPUSH', queue, who)\n  redis.call('ZADD'"}}},
		"a release forgets the holder first":     {text, []edit{{driver.Read, "local others = ", "redis.call('ZREM', KEYS[2], ARGV[1]) local others = 1 + "}}},
		"a renewal writes the note first":        {text, []edit{{driver.Write, "local kept = lengthen", "call('SET', KEYS[at], value, 'KEEPTTL') local kept = lengthen"}}},
		"a permit is counted first": {java, []edit{
			{driver.Counted, "call('INCRBY', KEYS[1], 0)\nlocal last", "if not again then call('INCRBY', KEYS[1], -1) end\nlocal last"},
			{driver.Counted, "== 1 then\n  call('INCRBY', KEYS[1], -1)", "== 2 then\n  call('INCRBY', KEYS[1], -1)"},
		}},
		"a permit goes before it may come back": {java, []edit{{driver.Counted, "  call('INCRBY', KEYS[1], 0) -- a permit", "  -- a permit"}}},
		"a hash comes before its end":           {java, []edit{{driver.Exclusive, "call('PEXPIRE', KEYS[1], ttl) -- also", "-- also"}}},
		"a downgrade ends the writer first":     {java, []edit{{driver.Read, "call('HDEL', KEYS[1], '')", "call('HDEL', KEYS[1], writer) call('DEL', KEYS[3])"}}},
		"a reader's timeout ends first":         {java, []edit{{driver.Read, "local others = call('HLEN'", "call('DEL', KEYS[2], KEYS[3]) call('HDEL', KEYS[1], ARGV[1], writer) local others = 1 + call('HLEN'"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newHalfLab(t, m.keeping)
			own := *l.user.storage.(*scripted).scripts
			l.user.storage.(*scripted).scripts = &own
			found := false
			for _, e := range m.edits {
				for _, sc := range []**script{&own[e.mode].acquire, &own[e.mode].renew, &own[e.mode].release} {
					mutant, is := changed(*sc, e)
					*sc, found = mutant, found || is
				}
				l.runAll(e.mode)
			}
			if !found {
				t.Errorf("no script has %v", m.edits)
			}
			if len(l.faults) == 0 {
				l.freeAfterOneTTL()
			}
			if len(l.faults) == 0 {
				t.Fatal("not caught")
			}
			t.Log(l.faults[0])
		})
	}
}

func newHalfLab(t *testing.T, k keeping) *halfLab {
	t.Helper()
	srv := testserver.Redis(t)
	must.OK(t, os.MkdirAll(filepath.Join(srv.Dir(), "dump.rdb", "full"), 0o755)) // which a snapshot can't replace
	must.Get(srv.Do("ACL", "SETUSER", "some", "on", "nopass", "~*", "&*", "+@all"))(t)
	must.Get(srv.Do("BGSAVE"))(t)
	eventually(t, "the snapshot failed", func() bool {
		info := fmt.Sprint(must.Get(srv.Do("INFO", "persistence"))(t))
		return strings.Contains(info, "rdb_last_bgsave_status:err")
	})
	return &halfLab{T: t, keeping: k, srv: srv, user: k.open(t, "redis://some:x@"+srv.Addr()), b: k.open(t, srv.URL()), raw: raw(t, srv.Addr())}
}

// runAll makes all calls of a mode.
func (l *halfLab) runAll(mode driver.Mode) {
	for _, s := range halfSteps {
		if l.hasStep(s, mode) {
			l.run(s, mode)
		}
	}
}

// freeAfterOneTTL waits until all holds have ended, and wants all names free.
func (l *halfLab) freeAfterOneTTL() {
	time.Sleep(halfTTL + 100*time.Millisecond)
	for _, c := range l.cells {
		r := halfRequest(c.r.Name, l.alone(c.r.Mode))
		for r.Limit = c.r.Limit; r.Limit > 0; r.Limit-- {
			next := r
			next.Limit, next.Owner = c.r.Limit, driver.NewOwner()
			if err := try(l.b, next); err != nil {
				l.fault("%s: after a TTL: %v: %v", c.what, err, dump(l, l.raw, c.r))
				break
			}
			if next.Mode != driver.Counted {
				break
			}
		}
	}
}
