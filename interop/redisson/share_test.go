package redisson

import (
	"strings"
	"testing"
	"time"
)

// Go turns a write lock into a read lock: Java's readers come in at once, its writers
// do not.
func TestGoDowngrades(t *testing.T) {
	s := newSides(t, single(t), read, nil)
	w, err := s.c.RWMutex(s.name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reader := s.on(s.th, "lock", millis(lease))
	s.th.parks(t)
	start := time.Now()
	if err := w.Downgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := at(t, reader.wait(t)).Sub(start); took > prompt {
		t.Errorf("Java's reader came in after %v", took)
	}
	s.other.call("try", s.java, "write", s.name, "0", millis(lease)).says(t, "false")
	give(t, w)
	s.other.call("try", s.java, "write", s.name, "0", millis(lease)).says(t, "false")
	s.on(s.th, "unlock").wait(t)
	s.other.call("try", s.java, "write", s.name, "0", millis(lease)).says(t, "true")
	s.other.call("unlock", s.java, "write", s.name).wait(t)
	s.d.leaves(t, s.name, s.k.left(s.name)...)
}

// Java reads under its write lock and gives up writing. It publishes nothing then: Go's
// reader comes in when it looks again by itself.
func TestJavaDowngrades(t *testing.T) {
	s := newSides(t, single(t), read, nil)
	s.th.call("lock", s.java, "write", s.name, millis(lease)).wait(t)
	s.on(s.th, "lock", millis(lease)).wait(t)
	before := s.d.attempts(t)
	waiter := startWaiter(t, s.lock)
	s.d.waits(t, before, 1)
	start := time.Now()
	s.th.call("unlock", s.java, "write", s.name).wait(t)
	h := waiter.granted(t)
	if took := h.at.Sub(start); took > 2*prompt {
		t.Errorf("Go's reader came in after %v", took)
	}
	isHeld(t, write.lock(s.c, s.name))
	give(t, h)
	isHeld(t, write.lock(s.c, s.name))
	s.on(s.th, "unlock").wait(t)
	give(t, take(t, write.lock(s.c, s.name)))
	s.d.leaves(t, s.name, s.k.left(s.name)...)
}

// Fences increase from Java's tokens to Go's and back.
func TestFencesIncrease(t *testing.T) {
	s := newSides(t, single(t), fenced, nil)
	last := uint64(0)
	next := func(fence uint64) {
		if fence <= last {
			t.Errorf("fence %d came after %d", fence, last)
		}
		last = fence
	}
	for range 20 {
		reply := s.on(s.th, "lock", "0").wait(t)
		next(token(t, reply))
		s.on(s.th, "unlock").wait(t)
		h := take(t, s.lock)
		next(fenceOf(h))
		give(t, h)
	}
}

// Both sides count the same permits, however they came to be.
func TestPermitsAreCountedTogether(t *testing.T) {
	s := newSides(t, single(t), permit(3), nil)
	free := func(want string) {
		t.Helper()
		s.th.call("free", s.java, s.name).says(t, want)
	}
	free("3")
	a := take(t, s.lock)
	b := s.javaLocks(t, s.th)
	free("1")
	c := take(t, s.lock)
	isHeld(t, s.lock)
	s.th.call("tryacquire", s.java, s.name, "0", millis(lease)).says(t, "null")
	give(t, a)
	s.javaUnlocks(s.th, b).wait(t)
	free("2")
	give(t, c)
	free("3")

	// A semaphore that Go made is one that Java knows.
	name := newName(t)
	h := take(t, permit(2).lock(s.c, name))
	s.th.call("permits", s.java, name, "5").says(t, "false")
	s.th.call("free", s.java, name).says(t, "1")
	give(t, h)
	s.d.leaves(t, name, permit(2).left(name)...)
}

// Names with and without a hash tag, not in ASCII, and with the prefix of distlock's
// options and Redisson's NameMapper are the same lock.
func TestNames(t *testing.T) {
	plainly, prefixed := single(t), single(t)
	prefixed.name, prefixed.prefix, prefixed.url = "prefixed", "app:", prefixed.url+"&prefix=app:"
	for _, d := range []*deployment{plainly, prefixed} {
		c := d.client(t, nil)
		for _, pattern := range []string{"NAME", "{NAME}", "{NAME}:a", "a:{NAME}:b", "NAME-ключ-鍵", "NAME:a:b"} {
			for _, k := range []kind{plain, fenced, write, read, permit(1)} {
				sameLock(t, sidesOf(t, d, k, strings.ReplaceAll(pattern, "NAME", newName(t)), c))
			}
		}
	}
}

// sameLock expects that both sides keep each other out.
func sameLock(t *testing.T, s *sides) {
	t.Helper()
	out := s.k
	if s.k.sharing == "reading" {
		out = write
	}
	held := s.javaLocks(t, s.th)
	isHeld(t, out.lock(s.c, s.name))
	s.javaUnlocks(s.th, held).wait(t)
	h := take(t, s.lock)
	if s.k.java == "permit" {
		s.th.call("tryacquire", s.java, s.name, "0", millis(lease)).says(t, "null")
	} else {
		s.th.call("try", s.java, out.java, s.name, "0", millis(lease)).says(t, "false")
	}
	give(t, h)
	s.d.leaves(t, s.name, s.k.left(s.d.prefix+s.name)...)
}
