package redisson

import (
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock"
)

// prompt is when a waiter has been woken, and not come by itself: locks live for 30 s.
const prompt = time.Second

// Whoever waits on one side is woken by a release on the other.
func TestWakeUps(t *testing.T) {
	for _, k := range []kind{plain, write, read, permit(1)} {
		t.Run(k.java, func(t *testing.T) { wakeUps(t, single(t), k, 40) })
	}
}

func wakeUps(t *testing.T, d *deployment, k kind, rounds int) {
	j := sharedJVM(t, 0)
	w := &wake{t: t, d: d, k: k, th: j.thread("wake"), java: j.client(t, d, lease), c: d.client(t, nil)}
	w.toGo(newName(t)) // to warm up
	w.toJava(newName(t))
	var toGo, toJava []time.Duration
	for range rounds {
		toGo = append(toGo, w.toGo(newName(t)))
		toJava = append(toJava, w.toJava(newName(t)))
	}
	judge(t, "Java's unlock woke Go", toGo)
	judge(t, "Go's unlock woke Java", toJava)
}

// judge expects that waiters were woken promptly.
func judge(t *testing.T, what string, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	p50, p99, longest := took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	t.Logf("%s after: p50 %v, p99 %v (%d times)", what, p50, p99, len(took))
	if longest > prompt {
		t.Errorf("%s after %v, want less than %v", what, longest, prompt)
	}
}

// wake is one lock that is passed between a Java thread and a Go client.
type wake struct {
	t    *testing.T
	d    *deployment
	k    kind
	th   *thread
	java string
	c    *distlock.Client
}

// holder is what the holder takes: a reader waits for a writer.
func (w *wake) holder() kind {
	if w.k.java == "read" {
		return write
	}
	return w.k
}

// toGo is the time from Java's unlock until a Go client that waits has the lock.
func (w *wake) toGo(name string) time.Duration {
	w.k.prepare(w.t, w.th, w.java, name)
	held := w.th.call(w.holder().javaLock(w.java, name, lease)...).wait(w.t)
	before := w.d.attempts(w.t)
	waiter := startWaiter(w.t, w.k.lock(w.c, name))
	w.d.waits(w.t, before, w.d.fan)
	called := at(w.t, w.th.call(w.holder().javaUnlock(w.java, name, held)...).wait(w.t))
	g := waiter.granted(w.t)
	give(w.t, g)
	return g.at.Sub(called)
}

// toJava is the time from Go's unlock until a Java thread that waits has the lock.
func (w *wake) toJava(name string) time.Duration {
	w.k.prepare(w.t, w.th, w.java, name)
	h := take(w.t, w.holder().lock(w.c, name))
	waiter := w.th.call(w.k.javaLock(w.java, name, lease)...)
	w.th.parks(w.t)
	called := time.Now()
	give(w.t, h)
	held := waiter.wait(w.t)
	w.th.call(w.k.javaUnlock(w.java, name, held)...).wait(w.t)
	return at(w.t, held).Sub(called)
}
