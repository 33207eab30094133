package redisson

import (
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/interop"
)

// Go turns a write lock into a read lock: Java's readers are granted at once, its writers are not.
func TestLongGoDowngrades(t *testing.T) {
	s := newFixture(t, single(t), read, &distlock.Options{TTL: lease}) // at the end of a TTL Java would try by itself
	w := must.Get(s.c.RWMutex(s.name).Lock(t.Context()))(t)
	reader := s.on(s.th, "lock", interop.Millis(lease))
	s.th.Parks(t)
	start := time.Now()
	must.OK(t, w.Downgrade(t.Context()))
	if took := interop.At(t, reader.Wait(t)).Sub(start); took > interop.Prompt {
		t.Errorf("Java's reader came in after %v", took)
	}
	s.other.Call("try", s.java, "write", s.name, "0", interop.Millis(lease)).Says(t, "false")
	interop.Give(t, w)
	s.other.Call("try", s.java, "write", s.name, "0", interop.Millis(lease)).Says(t, "false")
	s.on(s.th, "unlock").Wait(t)
	s.other.Call("try", s.java, "write", s.name, "0", interop.Millis(lease)).Says(t, "true")
	s.other.Call("unlock", s.java, "write", s.name).Wait(t)
	s.d.leaves(t, s.name, s.k.left(s.name)...)
}

// Java reads under its write lock and gives up writing. It publishes nothing then: Go's reader is
// granted at its next retry.
func TestLongJavaDowngrades(t *testing.T) {
	s := newFixture(t, single(t), read, nil)
	s.th.Call("lock", s.java, "write", s.name, interop.Millis(lease)).Wait(t)
	s.on(s.th, "lock", interop.Millis(lease)).Wait(t)
	before := s.d.attempts(t)
	waiter := interop.Wait(t, s.lock)
	s.d.waits(t, before, 1)
	start := time.Now()
	s.th.Call("unlock", s.java, "write", s.name).Wait(t)
	h := waiter.Granted(t)
	if took := h.At.Sub(start); took > 2*interop.Prompt {
		t.Errorf("Go's reader came in after %v", took)
	}
	interop.IsHeld(t, write.Lock(s.c, s.name))
	interop.Give(t, h)
	interop.IsHeld(t, write.Lock(s.c, s.name))
	s.on(s.th, "unlock").Wait(t)
	interop.Give(t, interop.Take(t, write.Lock(s.c, s.name)))
	s.d.leaves(t, s.name, s.k.left(s.name)...)
}

// Fences increase from Java's tokens to Go's and back.
func TestLongFencesIncrease(t *testing.T) {
	s := newFixture(t, single(t), fenced, nil)
	last := uint64(0)
	next := func(fence uint64) {
		if fence <= last {
			t.Errorf("fence %d came after %d", fence, last)
		}
		last = fence
	}
	for range 20 {
		reply := s.on(s.th, "lock", "0").Wait(t)
		next(token(t, reply))
		s.on(s.th, "unlock").Wait(t)
		h := interop.Take(t, s.lock)
		next(interop.Fence(h))
		interop.Give(t, h)
	}
}

// Both sides count the same permits, whichever side has made the semaphore.
func TestLongPermitsAreCountedTogether(t *testing.T) {
	s := newFixture(t, single(t), permit(3), nil)
	free := func(want string) {
		t.Helper()
		s.th.Call("free", s.java, s.name).Says(t, want)
	}
	free("3")
	a := interop.Take(t, s.lock)
	b := s.javaLocks(t, s.th)
	free("1")
	c := interop.Take(t, s.lock)
	interop.IsHeld(t, s.lock)
	s.th.Call("tryacquire", s.java, s.name, "0", interop.Millis(lease)).Says(t, "null")
	interop.Give(t, a)
	s.javaUnlocks(s.th, b).Wait(t)
	free("2")
	interop.Give(t, c)
	free("3")

	// Java can use a semaphore that Go has made.
	name := interop.NewName(t)
	h := interop.Take(t, permit(2).Lock(s.c, name))
	s.th.Call("permits", s.java, name, "5").Says(t, "false")
	s.th.Call("free", s.java, name).Says(t, "1")
	interop.Give(t, h)
	s.d.leaves(t, name, permit(2).left(name)...)
}

// A name is the same lock on both sides: with and without a hash tag, not in ASCII, and with a
// prefix, from distlock's options and Redisson's NameMapper.
func TestLongNames(t *testing.T) {
	plainly, prefixed := single(t), single(t)
	prefixed.name, prefixed.prefix, prefixed.url = "prefixed", "app:", prefixed.url+"&prefix=app:"
	for _, d := range []*deployment{plainly, prefixed} {
		c := interop.Client(t, d.url, nil)
		for _, pattern := range []string{"NAME", "{NAME}:a", "a:{NAME}:b", "NAME-ключ-鍵", "NAME:a:b"} {
			for _, k := range []kind{plain, fenced, write, read, permit(1)} {
				sameLock(t, fixtureOf(t, d, k, strings.ReplaceAll(pattern, "NAME", interop.NewName(t)), c))
			}
		}
	}
}

// sameLock expects that both sides keep each other out.
func sameLock(t *testing.T, s *fixture) {
	t.Helper()
	out := s.k
	if s.k.Sharing == "reading" {
		out = write
	}
	held := s.javaLocks(t, s.th)
	interop.IsHeld(t, out.Lock(s.c, s.name))
	s.javaUnlocks(s.th, held).Wait(t)
	h := interop.Take(t, s.lock)
	if s.k.Java == "permit" {
		s.th.Call("tryacquire", s.java, s.name, "0", interop.Millis(lease)).Says(t, "null")
	} else {
		s.th.Call("try", s.java, out.Java, s.name, "0", interop.Millis(lease)).Says(t, "false")
	}
	interop.Give(t, h)
	s.d.leaves(t, s.name, s.k.left(s.d.prefix+s.name)...)
}
