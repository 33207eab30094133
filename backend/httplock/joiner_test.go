package httplock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// busy opens a backend of servers, and lets calls of it wait at the first one until free is called: all that are made
// meanwhile wait in the client.
func busy(t *testing.T, servers ...*fake) (b *Backend, free func()) {
	t.Helper()
	b = openAll(t, servers...)
	b.joiner.patience = time.Hour
	f, end := servers[0], make(chan struct{})
	f.answer("/v1/release", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-end:
		case <-r.Context().Done():
		}
		f.mark(w)
		w.WriteHeader(http.StatusNoContent)
	})
	for range requestsAtOnce {
		go b.Release(t.Context(), requestFor("busy").Hold)
	}
	eventually(t, "requests under way", func() bool { return f.called("/v1/release") == requestsAtOnce })
	return b, func() { close(end); f.answer("/v1/release", nil) }
}

// waits returns how many calls wait in the client.
func (b *Backend) waits() int {
	b.joiner.mu.Lock()
	defer b.joiner.mu.Unlock()
	return len(b.joiner.queue)
}

// acquireAll acquires n locks at once while the backend is busy, and returns their outcomes by name.
func acquireAll(t *testing.T, b *Backend, free func(), names ...string) map[string]error {
	t.Helper()
	type outcome struct {
		name string
		err  error
	}
	all := make(chan outcome)
	for _, name := range names {
		go func() {
			_, err := b.Acquire(t.Context(), requestFor(name))
			all <- outcome{name, err}
		}()
	}
	eventually(t, "calls wait", func() bool { return b.waits() == len(names) })
	free()
	errs := map[string]error{}
	for range names {
		o := <-all
		errs[o.name] = o.err
	}
	return errs
}

// many answers POST /v1/calls by what line returns for each call; "" is no line.
func (f *fake) many(line func(i int, c httpwire.Call) string) {
	f.answer("/v1/calls", func(w http.ResponseWriter, r *http.Request) {
		f.mark(w)
		var m httpwire.Calls
		expect.OK(f.t, json.NewDecoder(r.Body).Decode(&m))
		for i, c := range m.Calls {
			fmt.Fprintln(w, line(i, c))
		}
	})
}

func granted(i int) string {
	return fmt.Sprintf(`{"index":%d,"outcome":"ok","grant":{"fence":"7","fences":"1","ttl_ms":60000}}`, i)
}

func refused(i int, kind httpwire.Kind) string {
	return fmt.Sprintf(`{"index":%d,"outcome":%q,"problem":{"distlock":%[2]q,"detail":"says %[2]s"}}`, i, kind)
}

// Calls that are made at once share a request, and each has its own answer.
func TestJoinedCalls(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b, free := busy(t, f)
	f.many(func(i int, c httpwire.Call) string {
		if c.Acquire.Name == "ok" {
			return granted(i)
		}
		return refused(i, httpwire.Kind(c.Acquire.Name))
	})
	errs := acquireAll(t, b, free, "ok", "held", "invalid", "unsupported", "unknown")
	for name, want := range map[string]error{"ok": nil, "held": driver.ErrHeld, "invalid": driver.ErrInvalid, "unsupported": driver.ErrUnsupported} {
		expect.Be(t, errs[name], want, name)
	}
	noFact(t, "unknown", errs["unknown"])
	expect.Equal(t, fmt.Sprint(f.called("/v1/calls"), f.called("/v1/acquire")), "1 0")
	_, err := b.Acquire(t.Context(), requestFor("lone"))
	expect.OK(t, err)
	expect.Equal(t, f.called("/v1/acquire"), 1, "a call that is alone")
}

// What a server says that it has not done goes to the next one, and nothing else does.
func TestJoinedCallsGoOn(t *testing.T) {
	t.Parallel()
	f, next := newFake(t), newFake(t)
	b, free := busy(t, f, next)
	f.answer("/v1/acquire", f.problem(httpwire.Unsent))
	f.many(func(i int, c httpwire.Call) string {
		if c.Acquire.Name == "spent" {
			return fmt.Sprintf(`{"index":%d,"outcome":"unsent","problem":{"distlock":"unsent","spent":true}}`, i)
		}
		return refused(i, httpwire.Unsent)
	})
	errs := acquireAll(t, b, free, "a", "b", "spent")
	expect.OK(t, errs["a"])
	expect.OK(t, errs["b"])
	expect.Be(t, errs["spent"], driver.ErrSpent)
	expect.Equal(t, next.called("/v1/acquire"), 2)
}

// A request that is refused as a whole has done nothing.
func TestJoinedCallsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, kind := range []httpwire.Kind{httpwire.Unsent, httpwire.Invalid, httpwire.Denied} {
		f := newFake(t)
		b, free := busy(t, f)
		f.answer("/v1/calls", f.problem(kind))
		for name, err := range acquireAll(t, b, free, "a", "b") {
			expect.OK(t, err, string(kind), name)
		}
		expect.Equal(t, f.called("/v1/acquire"), 2)
	}
}

// Lines that are malformed or missing leave the outcome unknown, and harm no other call.
func TestMalformedLines(t *testing.T) {
	t.Parallel()
	for what, line := range map[string]string{
		"none": "", "an index": granted(9), "a negative one": granted(-1), "no grant": `{"index":%d,"outcome":"ok"}`,
		"no outcome": `{"index":%d}`, "half": granted(0)[:40], "ok with a problem": `{"index":%d,"outcome":"ok","problem":{"distlock":"held"}}`,
		"held without one": `{"index":%d,"outcome":"held"}`, "two kinds": `{"index":%d,"outcome":"held","problem":{"distlock":"lost"}}`,
		"an ok problem": `{"index":%d,"outcome":"ok","problem":{"distlock":"ok"}}`, "a fence too many": `{"index":%d,"outcome":"ok","grant":{"fence":"7","fences":"2","ttl_ms":60000}}`,
		"a kind that is not known": `{"index":%d,"outcome":"gone","problem":{"distlock":"gone"}}`,
	} {
		f := newFake(t)
		b, free := busy(t, f)
		var last string
		f.many(func(i int, c httpwire.Call) string {
			if i == 0 {
				return granted(0)
			}
			last = c.Acquire.Name
			if strings.Contains(line, "%d") {
				return fmt.Sprintf(line, i)
			}
			return line
		})
		errs := acquireAll(t, b, free, "a", "b")
		noFact(t, what, errs[last])
		delete(errs, last)
		for name, err := range errs {
			expect.OK(t, err, what, name)
		}
	}
	f := newFake(t)
	b, free := busy(t, f)
	f.answer("/v1/calls", hangUp)
	for name, err := range acquireAll(t, b, free, "a", "b") {
		noFact(t, name, err)
	}
	f = newFake(t)
	b, free = busy(t, f)
	f.answer("/v1/calls", f.problem(httpwire.Lost))
	for name, err := range acquireAll(t, b, free, "a", "b") {
		noFact(t, "all are lost: "+name, err)
	}
}

// A call without an answer holds up neither those in its request nor those behind it.
func TestSilentCallHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b, free := busy(t, f)
	silence := make(chan struct{})
	defer close(silence)
	f.answer("/v1/calls", func(w http.ResponseWriter, r *http.Request) {
		f.mark(w)
		fmt.Fprintln(w, granted(1))
		w.(http.Flusher).Flush()
		select {
		case <-silence:
		case <-r.Context().Done():
		}
	})
	done := make(chan string, 2)
	ctx, cancel := context.WithCancel(t.Context())
	for _, name := range []string{"a", "b"} {
		go func() {
			if _, err := b.Acquire(ctx, requestFor(name)); err == nil {
				done <- "granted"
			} else {
				noFact(t, "the silent one", err)
				done <- "silent"
			}
		}()
	}
	eventually(t, "calls wait", func() bool { return b.waits() == 2 })
	free()
	expect.Equal(t, <-done, "granted")
	for range 2 * requestsAtOnce {
		_, err := b.Acquire(t.Context(), requestFor("behind"))
		expect.OK(t, err)
	}
	cancel()
	expect.Equal(t, <-done, "silent")
}

// Requests without any answer hold up others for a moment only.
func TestSilentRequestsHoldUpNoOther(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b, free := busy(t, f)
	defer free()
	b.joiner.mu.Lock()
	b.joiner.patience, b.joiner.busy = joinTime, 0
	b.joiner.mu.Unlock()
	for range requestsAtOnce {
		go b.Release(t.Context(), requestFor("silent").Hold)
	}
	eventually(t, "requests under way", func() bool { return f.called("/v1/release") == 2*requestsAtOnce })
	_, err := b.Acquire(t.Context(), requestFor("x"))
	expect.OK(t, err)
}

// A caller that goes while it waits has sent nothing. One whose call was sent does not know its outcome, and the last one ends the request.
func TestCallersOfJoinedCallsGo(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b, free := busy(t, f)
	ended := make(chan struct{})
	f.answer("/v1/calls", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); close(ended) })
	errs := make(chan error, 3)
	acquire := func(ctx context.Context) { _, err := b.Acquire(ctx, requestFor("x")); errs <- err }
	early, cancel := context.WithCancel(t.Context())
	go acquire(early)
	eventually(t, "a call waits", func() bool { return b.waits() == 1 })
	cancel()
	err := <-errs
	if !errors.Is(err, driver.ErrUnsent) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go acquire(ctx)
	go acquire(ctx)
	eventually(t, "calls wait", func() bool { return b.waits() == 2 })
	free()
	eventually(t, "the request", func() bool { return f.called("/v1/calls") == 1 })
	cancel()
	for range 2 {
		noFact(t, "a call that was sent", <-errs)
	}
	<-ended
}

// The last caller that waits for an answer ends the request when it goes: those that were answered wait for nothing.
func TestLastCallerOfJoinedCallsGoes(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b, free := busy(t, f)
	ended := make(chan struct{})
	f.answer("/v1/calls", func(w http.ResponseWriter, r *http.Request) {
		f.mark(w)
		fmt.Fprintln(w, granted(0))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	for range 2 {
		go func() { _, err := b.Acquire(ctx, requestFor("x")); errs <- err }()
	}
	eventually(t, "calls wait", func() bool { return b.waits() == 2 })
	free()
	expect.OK(t, <-errs)
	cancel()
	noFact(t, "the silent call", <-errs)
	select {
	case <-ended:
	case <-soon(t).Done():
		t.Error("the request goes on, with no one who waits for it")
	}
}

// A server that does not know joined calls, such as an older one, has as many requests at once as there are calls.
func TestServersThatDoNotJoin(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.set(func() { f.joins = 0 })
	b := openAll(t, f)
	b.joiner.patience = time.Hour
	const calls = 3 * requestsAtOnce
	end := make(chan struct{})
	f.answer("/v1/acquire", func(http.ResponseWriter, *http.Request) { <-end })
	done := make(chan error, calls)
	for range calls {
		go func() { _, err := b.Acquire(t.Context(), requestFor("x")); done <- err }()
	}
	eventually(t, "all are under way", func() bool { return f.called("/v1/acquire") == calls })
	close(end)
	for range calls {
		<-done
	}
}

// A server that was replaced by an older one says that it does not know the call: nothing was done.
func TestJoinedCallsAtAnOlderServer(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b, free := busy(t, f)
	f.answer("/v1/calls", http.NotFound)
	for name, err := range acquireAll(t, b, free, "a", "b") {
		expect.OK(t, err, name)
	}
	expect.Equal(t, fmt.Sprint(f.called("/v1/calls"), f.called("/v1/acquire")), "1 2")
}

// A server that can't be reached is tried once for all calls of a request.
func TestJoinedCallsLeaveAServerThatIsOff(t *testing.T) {
	t.Parallel()
	f, next := newFake(t), newFake(t)
	b, free := busy(t, f, next)
	f.answer("/v1/calls", f.problem(httpwire.Unsent))
	for name, err := range acquireAll(t, b, free, "a", "b") {
		expect.OK(t, err, name)
	}
	expect.Equal(t, fmt.Sprint(f.called("/v1/acquire"), next.called("/v1/acquire")), "0 2")
}

// A right that another server knows already is looked for there, as for a call that is alone.
func TestDeniedJoinedCallsGoOn(t *testing.T) {
	t.Parallel()
	f, next := newFake(t), newFake(t)
	b, free := busy(t, f, next)
	f.answer("/v1/acquire", f.problem(httpwire.Denied))
	f.many(func(i int, c httpwire.Call) string { return refused(i, httpwire.Denied) })
	for name, err := range acquireAll(t, b, free, "a", "b") {
		expect.OK(t, err, name)
	}
}

// An answer that does not end after its last line is given up.
func TestJoinedAnswerWithoutAnEnd(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b, free := busy(t, f)
	ended := make(chan struct{})
	f.answer("/v1/calls", func(w http.ResponseWriter, r *http.Request) {
		f.mark(w)
		fmt.Fprintln(w, granted(0)+"\n"+granted(1))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(ended)
	})
	for name, err := range acquireAll(t, b, free, "a", "b") {
		expect.OK(t, err, name)
	}
	select {
	case <-ended:
	case <-soon(t).Done():
		t.Error("the request goes on")
	}
}
