package httplock

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// wantSignal fails the test unless a watch signals.
func wantSignal(t testing.TB, w driver.Watch, what string) {
	t.Helper()
	select {
	case _, open := <-w.Ready:
		if !open {
			t.Errorf("%s: Ready is closed", what)
		}
	case <-soon(t).Done():
		t.Errorf("no signal: %s", what)
	}
}

// A watch whose stream breaks is armed again, at another server if need be, and signals then.
func TestWatchIsArmedAgain(t *testing.T) {
	t.Parallel()
	one, two := newFake(t), newFake(t)
	b := openAll(t, one, two)
	first, second := make(chan string), make(chan string)
	one.answer("/v1/watch", func(w http.ResponseWriter, r *http.Request) {
		one.mark(w)
		one.events(w, r, httpwire.EventArmed, first)
	})
	two.answer("/v1/watch", func(w http.ResponseWriter, r *http.Request) {
		two.mark(w)
		two.events(w, r, httpwire.EventArmed, second)
	})
	arming, cancel := context.WithCancel(t.Context())
	w, err := b.Watch(arming, requestFor("job"))
	cancel() // it bounds the arming only
	must.OK(t, err)
	first <- ": ping"
	first <- "event: ready\ndata: {}"
	wantSignal(t, w, "ready")
	select {
	case <-w.Ready:
		t.Error("a signal without a reason")
	default:
	}
	one.answer("/v1/watch", one.problem(httpwire.Unsent))
	close(first)
	wantSignal(t, w, "the stream has broken")
	second <- "event: ready"
	wantSignal(t, w, "ready at the second server")
	w.Close()
	eventually(t, "the stream ends", func() bool {
		select {
		case second <- ": ping":
			return false
		case <-time.After(10 * time.Millisecond):
			return true
		}
	})
}

// A watch for which no server has room is armed later, and signals then: the core polls without a watch.
func TestWatchIsArmedLater(t *testing.T) {
	t.Parallel()
	one, two := newFake(t), newFake(t)
	b := openAll(t, one, two)
	for _, f := range []*fake{one, two} {
		f.answer("/v1/watch", f.problem(httpwire.Unsent))
	}
	w := must.Get(b.Watch(soon(t), requestFor("job")))(t)
	eventually(t, "it asks again", func() bool { return one.called("/v1/watch") > 2 })
	select {
	case <-w.Ready:
		t.Error("a signal, and no server has room")
	default:
	}
	end := make(chan string)
	two.answer("/v1/watch", func(w http.ResponseWriter, r *http.Request) {
		two.mark(w)
		two.events(w, r, httpwire.EventArmed, end)
	})
	wantSignal(t, w, "there is room")
	two.answer("/v1/watch", two.problem(httpwire.Unsent))
	close(end)
	wantSignal(t, w, "the stream has broken, and no server has room")
	w.Close()
	for _, f := range []*fake{one, two} {
		f.Close()
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Watch(over, requestFor("job")); err == nil {
		t.Error("a watch of a caller that has gone")
	}
	must.OK(t, b.Close())
	expect.Be(t, expect.Err(b.Watch(soon(t), requestFor("job"))), driver.ErrClosed, "after Close")
}

// A stream without pings is broken: the network may have swallowed a signal.
func TestSilentWatch(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	b.client.quiet = time.Millisecond
	w := must.Get(b.Watch(soon(t), requestFor("job")))(t)
	defer w.Close()
	wantSignal(t, w, "the stream is silent")
	wantSignal(t, w, "the next stream is silent")
}

// A watch that can't be armed is an error, or is left out where the backend has none.
func TestWatchIsNotArmed(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	f.answer("/v1/watch", f.problem(httpwire.Unsupported))
	expect.Be(t, expect.Err(b.Watch(soon(t), requestFor("job"))), driver.ErrSkip, "without watches")
	f.answer("/v1/watch", func(w http.ResponseWriter, r *http.Request) {
		f.mark(w)
		f.events(w, r, httpwire.EventReady, nil)
	})
	_, err := b.Watch(soon(t), requestFor("job"))
	noFact(t, "another first event", err)
	f.answer("/v1/watch", func(w http.ResponseWriter, r *http.Request) {
		f.mark(w)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	_, err = b.Watch(untilCalled(t, f, "/v1/watch", 3), requestFor("job"))
	noFact(t, "no event", err)
	expect.Be(t, err, context.Canceled)
}

// A revocable lock is acquired only while its news can arrive; others do not wait for them.
func TestNews(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	f.answer("/v1/news", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) })
	var lost, asked atomic.Int32
	r := requestFor("job")
	r.OnLost = func() { lost.Add(1) }
	expect.OK(t, expect.Err(b.Acquire(soon(t), r)), "without OnRevoke")
	r.OnRevoke = func() { asked.Add(1) }
	if _, err := b.Acquire(soon(t), r); !errors.Is(err, driver.ErrUnsent) || driver.Final(err) {
		t.Errorf("without news: %v", err)
	}
	if l := b.news.holds[r.Owner]; l == nil || l.onRevoke != nil {
		t.Errorf("the hold has not the listener of its grant: %+v", l)
	}
	events := make(chan string)
	var secret atomic.Value
	f.answer("/v1/news", func(w http.ResponseWriter, r *http.Request) {
		secret.Store(r.Header.Get(httpwire.ClientHeader))
		f.mark(w)
		f.events(w, r, httpwire.EventHello, events)
	})
	f.answer("/v1/acquire", func(w http.ResponseWriter, r *http.Request) {
		if s := r.Header.Get(httpwire.ClientHeader); s == "" || s != secret.Load() {
			t.Errorf("the secret of the acquire is not that of the news")
		}
		f.answer("/v1/acquire", nil)
		f.ServeHTTP(w, r)
	})
	ctx := soon(t)
	_, err := b.Acquire(ctx, r)
	for errors.Is(err, driver.ErrUnsent) && ctx.Err() == nil { // an attempt to open the stream was still under way
		_, err = b.Acquire(ctx, r)
	}
	must.OK(t, err)
	other := requestFor("other")
	other.OnLost = r.OnLost
	must.Get(b.Acquire(soon(t), other))(t)
	about := func(e, owner string) string {
		return "event: " + e + "\ndata: {\"name\":\"job\",\"owner\":\"" + owner + "\"}"
	}
	for _, e := range []string{
		about("asked", driver.NewOwner()), about("asked", other.Owner), about("asked", r.Owner), about("asked", r.Owner),
		"event: asked\ndata: {", about("lost", r.Owner), about("lost", r.Owner),
	} {
		events <- e
	}
	done := make(chan struct{})
	b.news.listen("last", &holdListener{onLost: func() { close(done) }, until: time.Now().Add(time.Hour)})
	events <- about("lost", "last")
	<-done
	if lost.Load() != 1 || asked.Load() != 1 {
		t.Errorf("lost %d times, asked %d times", lost.Load(), asked.Load())
	}
	close(events)
	eventually(t, "the stream is opened again", func() bool { return f.called("/v1/news") >= 3 })
	b.news.forget(other.Owner)
	expect.Equal(t, len(b.news.holds), 0, "listeners are left")
}

// A backend that never asks holders costs no stream.
func TestNoNews(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.caps.Revocable = 0
	b := openAll(t, f)
	r := requestFor("job")
	r.OnLost = func() {}
	if _, err := b.Acquire(soon(t), r); err != nil || len(b.news.streams) != 0 {
		t.Errorf("%d streams, %v", len(b.news.streams), err)
	}
}

// Listeners of holds that have ended without a word are removed.
func TestListenersEnd(t *testing.T) {
	t.Parallel()
	b := openAll(t, newFake(t))
	for i := range 10_000 {
		b.news.listen(driver.NewOwner(), &holdListener{until: time.Now().Add(time.Hour * time.Duration(i%100-98))})
	}
	if n := len(b.news.holds); n < 100 || n > 500 {
		t.Errorf("%d of 10000 listeners are left; 100 are alive", n)
	}
}
