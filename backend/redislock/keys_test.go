package redislock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// transcript has the calls of a name and their answers.
type transcript struct {
	t     *testing.T
	b     *Backend
	lines []string
}

func (s *transcript) note(what string, err error) {
	answer := "nil"
	for _, kind := range []error{driver.ErrHeld, driver.ErrLost, driver.ErrInvalid, driver.ErrUnsupported} {
		if errors.Is(err, kind) {
			answer = kind.Error()
		}
	}
	if err != nil && answer == "nil" {
		answer = err.Error()
	}
	s.lines = append(s.lines, what+": "+answer)
}

func (s *transcript) acquire(what string, r driver.Request) {
	_, err := s.b.Acquire(s.t.Context(), r)
	s.note(what, err)
}

func (s *transcript) inspect(name string) {
	info, err := s.b.Inspect(s.t.Context(), name)
	s.note(fmt.Sprintf("inspect shows %d of %v, limit %d, %d in the queue", len(info.Holders), info.Mode, info.Limit, max(0, info.WaiterCount)), err)
}

// lifeOf lives through all that can be done with a name, and calls during now and then.
func lifeOf(t *testing.T, b *Backend, c *redis.Client, name string, during func()) []string {
	s := &transcript{t: t, b: b}
	defer c.Del(t.Context(), name) // of a semaphore that stays, as Java wants it
	for _, mode := range allModes {
		if !b.Caps().Modes.Has(mode) {
			continue
		}
		r, other := request(name, mode), request(name, mode)
		r.Limit, other.Limit = 1, 1
		if mode == driver.Read {
			other.Mode = driver.Write
		}
		other.Queue = b.Caps().QueueingOf(other.Mode) != driver.QueueNever
		s.inspect(name)
		s.acquire("lock", r)
		during()
		s.acquire("again", r)
		s.acquire("refused", other)
		s.inspect(name)
		during()
		s.note("renew", b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
		s.note("unlock", b.Release(t.Context(), r.Hold))
		during()
		s.acquire("turn", other)
		s.note("unlock", b.Release(t.Context(), other.Hold))
		s.note("lost", b.Release(t.Context(), other.Hold))
		s.inspect(name)
	}
	return s.lines
}

// javaOwner is a thread of Java's as it stands in keys.
const javaOwner = "8743c9c0-0795-4907-87fd-6c719a6b4586:52"

// keysBeside are the keys that may be there because a name is used: those that the server
// has meanwhile, those that it may have in either layout, and Java's.
func keysBeside(t *testing.T, b *Backend, c *redis.Client, name string) []string {
	keys := append(layouts.String("", false).QueueKeys(name), layouts.Redisson("", false).QueueKeys(name)...)
	keys = append(keys, b.layout.Counter(name), "distlock:fence", layouts.String("", true).Counter(name), "app:distlock:fence", layouts.String("app:", true).Counter(name), layouts.String("{app}", true).Counter(name),
		layouts.TokenKey(name), layouts.PermitsKey(name), layouts.Tagged(name)+":timeout",
		layouts.HoldKey(name, driver.NewOwner()), layouts.HoldKey(name, javaOwner), layouts.ReaderKey(name, driver.NewOwner()), layouts.ReaderKey(name, javaOwner),
		layouts.Tagged(name)+":"+javaOwner+":rwlock_timeout:12", "redisson_unlock_latch:"+layouts.Tagged(name)+":0123456789abcdef0123456789abcdef",
		layouts.Tagged(name)+":distlock:none", "distlock_guard:{"+name+"}", "{"+name+"}:distlock_guard")
	lifeOf(t, b, c, name, func() {
		found := must.Get(c.Keys(t.Context(), "*").Result())(t)
		keys = append(keys, found...)
	})
	keys = slices.DeleteFunc(keys, func(key string) bool { return key == name })
	slices.Sort(keys)
	return slices.Compact(keys)
}

// similarNames are names that share something with another one, but no key of it.
func similarNames(name string) []string {
	names := []string{strings.Trim(name, "{}"), "{" + name + "}", name + ":timeout", name + ":distlock", name + ":1"}
	for _, channel := range []string{layouts.FreeChannel(name), layouts.LockChannel(name), layouts.RWChannel(name), layouts.PermitsChannel(name)} {
		names = append(names, channel, channel+":"+driver.NewOwner())
	}
	return slices.DeleteFunc(names, func(n string) bool { return n == name })
}

// No lock has the name of a key that stands beside another lock, and the locks that are
// allowed leave others as they are.
func TestLongKeysBesideALockAreNoNames(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	c := raw(t, srv.Addr())
	for _, o := range []Options{{}, {Layout: Redisson}, {Scripts: ScriptsOff}} {
		b := openOwn(t, srv.Addr(), o)
		for _, name := range []string{"job", "{job}", "{job}7"} {
			if name == "{job}" && o.Layout == Redisson {
				continue // see akin
			}
			c.FlushDB(t.Context())
			for _, key := range keysBeside(t, b, c, name) {
				if !refuses(t, b, c, key) {
					t.Errorf("%+v: %q is a key of %q, and a name", o, key, name)
				}
			}
			c.FlushDB(t.Context())
			want := lifeOf(t, b, c, name, func() {})
			for _, other := range similarNames(name) {
				if !refuses(t, b, c, other) {
					leavesAlone(t, b, c, other, name, want)
				}
			}
		}
	}
}

// The error of a refused name says which rule it breaks.
func TestRefusedNamesTellWhy(t *testing.T) {
	srv := testserver.SharedRedis(t)
	for name, want := range map[string]string{
		"distlock_line:{x}": `"distlock_line:"`, "redisson_lock_queue:{x}": `"redisson_lock_queue:"`, "{x}:timeout": `":timeout"`,
		"app:distlock:fence": `"distlock:fence"`, "distlock:fence:{12}": `"distlock:fence"`, "{x}:" + javaOwner + ":rwlock_timeout:3": `":rwlock_timeout:"`,
	} {
		for _, layout := range []Layout{String, Redisson} {
			b := openOwn(t, srv.Addr(), Options{Layout: layout})
			if err := refused(t, b, request(name, driver.Exclusive), driver.ErrInvalid); !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v, want the name and %s", layout, err, want)
			}
			// Names whose keys begin otherwise are allowed.
			prefixed := openOwn(t, srv.Addr(), Options{Layout: layout, Prefix: "app:"})
			if strings.HasSuffix(want, `:"`) && !strings.Contains(want, "timeout") {
				r := request(name, driver.Exclusive)
				acquire(t, prefixed, r)
				release(t, prefixed, r)
			}
		}
	}
	j := openOwn(t, srv.Addr(), Options{Layout: Redisson})
	if err := refused(t, j, request("{a}", driver.Exclusive), driver.ErrInvalid); !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("%v, want the name that is meant", err)
	}
	// Java's locks under such a name are not listed either.
	c := raw(t, srv.Addr())
	java := request("", driver.Exclusive).Name
	for _, name := range []string{java, "{" + java + "}"} {
		c.HSet(t.Context(), name, javaOwner, 1)
		defer c.Del(t.Context(), name)
	}
	for prefix, want := range map[string][]string{java: {java}, "{" + java: nil} {
		var names []string
		err := j.List(t.Context(), prefix, func(name string) bool { names = append(names, name); return true })
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("names with %s: %q, %v; want %q", prefix, names, err, want)
		}
	}
	for _, prefix := range []string{"distlock_line:", "redisson_lock_token:x"} {
		if b, err := NewGoRedis(raw(t, srv.Addr()), &Options{Prefix: prefix}); b != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("prefix %q: %v, %v", prefix, b, err)
		}
	}
	opened(t, openOwn(t, srv.Addr(), Options{Layout: Redisson, Prefix: "{app}"}), nil) // all in one slot
}

// refuses reports whether a name is refused. If so, every call must refuse it.
func refuses(t *testing.T, b *Backend, c *redis.Client, name string) bool {
	t.Helper()
	defer c.Del(t.Context(), name)
	_, err := b.Inspect(t.Context(), name)
	want := errors.Is(err, driver.ErrInvalid)
	for _, mode := range allModes {
		r := request(name, mode)
		if !b.Caps().Modes.Has(r.Mode) {
			continue
		}
		_, err := b.Acquire(t.Context(), r)
		errs := []error{err, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], b.Release(t.Context(), r.Hold)}
		w, err := b.Watch(t.Context(), r)
		if err == nil {
			w.Close()
		}
		for i, err := range append(errs, err) {
			if errors.Is(err, driver.ErrInvalid) != want {
				t.Errorf("%q: Inspect refuses it: %v, call %d for a %v hold: %v", name, want, i, r.Mode, err)
			}
		}
	}
	return want
}

// leavesAlone uses key as a lock while name is used.
func leavesAlone(t *testing.T, b *Backend, c *redis.Client, key, name string, want []string) {
	t.Helper()
	for _, mode := range allModes {
		if !b.Caps().Modes.Has(mode) {
			continue
		}
		r := request(key, mode)
		acquire(t, b, r)
		wantLines(t, fmt.Sprintf("%q while %q is held as %v", name, key, mode), lifeOf(t, b, c, name, func() {}), want)
		if err := b.Release(t.Context(), r.Hold); err != nil {
			t.Errorf("unlock of %q after %q was used: %v", key, name, err)
		}
		c.Del(t.Context(), key)
	}
	got := lifeOf(t, b, c, name, func() {
		wantLines(t, fmt.Sprintf("%q while %q is used", key, name), lifeOf(t, b, c, key, func() {}), want)
	})
	wantLines(t, fmt.Sprintf("%q beside %q", name, key), got, want)
}

func wantLines(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s: call %d: %s; want %s", what, i, got[i], want[i])
			return
		}
	}
}
