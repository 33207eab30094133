package redisson

import (
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/interop"
)

// A waiter on one side is woken by a release on the other.
func TestLongWakeUps(t *testing.T) {
	for _, k := range []kind{plain, write, read, permit(1)} {
		t.Run(k.Java, func(t *testing.T) { wakeUps(t, single(t), k, 40) })
	}
}

func wakeUps(t *testing.T, d *deployment, k kind, rounds int) {
	j := jvms.Shared(t, 0)
	w := &wake{t: t, d: d, k: k, th: j.Thread("wake"), java: javaClient(t, j, d, lease), c: interop.Client(t, d.url, nil)}
	w.toGo(interop.NewName(t)) // to warm up
	w.toJava(interop.NewName(t))
	var toGo, toJava []time.Duration
	for range rounds {
		toGo = append(toGo, w.toGo(interop.NewName(t)))
		toJava = append(toJava, w.toJava(interop.NewName(t)))
	}
	interop.Judge(t, "Java's unlock woke Go", toGo)
	interop.Judge(t, "Go's unlock woke Java", toJava)
}

// wake is one lock that is passed between a Java thread and a Go client.
type wake struct {
	t    *testing.T
	d    *deployment
	k    kind
	th   *interop.Thread
	java string
	c    *distlock.Client
}

// holder returns the kind that the holder takes: a reader waits for a writer.
func (w *wake) holder() kind {
	if w.k.Java == "read" {
		return write
	}
	return w.k
}

// toGo is the time from Java's unlock until a Go client that waits has the lock.
func (w *wake) toGo(name string) time.Duration {
	w.k.prepare(w.t, w.th, w.java, name)
	held := w.th.Call(w.holder().javaLock(w.java, name, lease)...).Wait(w.t)
	before := w.d.attempts(w.t)
	waiter := interop.Wait(w.t, w.k.Lock(w.c, name))
	w.d.waits(w.t, before, w.d.fan)
	called := interop.At(w.t, w.th.Call(w.holder().javaUnlock(w.java, name, held)...).Wait(w.t))
	g := waiter.Granted(w.t)
	interop.Give(w.t, g)
	return g.At.Sub(called)
}

// toJava is the time from Go's unlock until a Java thread that waits has the lock.
func (w *wake) toJava(name string) time.Duration {
	w.k.prepare(w.t, w.th, w.java, name)
	h := interop.Take(w.t, w.holder().Lock(w.c, name))
	waiter := w.th.Call(w.k.javaLock(w.java, name, lease)...)
	w.th.Parks(w.t)
	called := time.Now()
	interop.Give(w.t, h)
	held := waiter.Wait(w.t)
	w.th.Call(w.k.javaUnlock(w.java, name, held)...).Wait(w.t)
	return interop.At(w.t, held).Sub(called)
}
