package httplock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

func holds(n int) []driver.Hold {
	all := make([]driver.Hold, n)
	for i := range all {
		all[i] = requestFor(fmt.Sprint("job ", i)).Hold
	}
	return all
}

// Lines count as they come. When the context ends, the holds without a line are unknown.
func TestRenewByLines(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	f.answer("/v1/renew", func(w http.ResponseWriter, r *http.Request) {
		f.mark(w)
		fmt.Fprintln(w, `{"index":2,"outcome":"lost","detail":"it has ended"}`)
		fmt.Fprintln(w, `{"index":0,"outcome":"ok"}`)
		fmt.Fprintln(w, `{"index":3,"outcome":"unknown","detail":"the shard is silent"}`)
		fmt.Fprintln(w, `{"index":4,"outcome":"held"}`)
		fmt.Fprintln(w, `{"index":5,"outcome":"denied","detail":"ci has not the right"}`)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	all := holds(6)
	unset := time.Now().Add(time.Hour)
	b.news.listen(all[0].Owner, &holdListener{until: unset})
	go func() {
		eventually(t, "the lines have come", func() bool {
			b.news.mu.Lock()
			defer b.news.mu.Unlock()
			return b.news.holds[all[0].Owner].until != unset
		})
		cancel()
	}()
	errs := b.Renew(ctx, all)
	if errs[0] != nil || !errors.Is(errs[2], driver.ErrLost) || !errors.Is(errs[5], driver.ErrUnsent) || driver.Final(errs[5]) {
		t.Errorf("got %v", errs)
	}
	for _, i := range []int{1, 3, 4} {
		noFact(t, "no answer", errs[i])
	}
}

func TestRenewOfMalformedLines(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	for _, second := range []string{
		``, `{`, `null`, `<html>`, `{"index":2,"outcome":"ok"}`, `{"index":-1,"outcome":"ok"}`, `{"index":0,"outcome":"lost"}`, `{"index":1}`,
		`{"index":1,"outcome":"unsent"}`, strings.Repeat("x", 2*maxLine),
	} {
		f.answer("/v1/renew", func(w http.ResponseWriter, _ *http.Request) {
			f.mark(w)
			fmt.Fprintln(w, `{"index":0,"outcome":"ok"}`)
			fmt.Fprint(w, second)
		})
		errs := b.Renew(soon(t), holds(2))
		if errs[0] != nil {
			t.Errorf("%.50q: the first line counts: %v", second, errs[0])
		}
		noFact(t, second, errs[1])
	}
}

// An answer that is cut in the middle of a line makes the client go to the next server.
func TestRenewThatBreaksOff(t *testing.T) {
	t.Parallel()
	one, two := newFake(t), newFake(t)
	b := openAll(t, one, two)
	for _, end := range []string{`{"index":1,"outco`, ``} {
		b.client.current.Store(0)
		one.answer("/v1/renew", func(w http.ResponseWriter, r *http.Request) {
			one.mark(w)
			fmt.Fprint(w, `{"index":0,"outcome":"ok"}`+"\n"+end)
			w.(http.Flusher).Flush()
			hangUp(w, r)
		})
		errs := b.Renew(soon(t), holds(2))
		if errs[0] != nil {
			t.Errorf("the whole line counts: %v", errs[0])
		}
		noFact(t, "half an answer", errs[1])
		if b.client.current.Load() != 1 {
			t.Errorf("after %q the client stays: %v", end, errs[1])
		}
	}
}

// Many holds go in chunks that a server takes.
func TestRenewInChunks(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := openAll(t, f)
	var chunks, inAll atomic.Int32
	f.answer("/v1/renew", func(w http.ResponseWriter, r *http.Request) {
		f.mark(w)
		body, _ := io.ReadAll(r.Body)
		var m httpwire.Renewal
		if err := json.Unmarshal(body, &m); err != nil || len(body) >= httpwire.MaxRenewal || len(m.Holds) > httpwire.MaxHolds {
			t.Errorf("%d bytes, %d holds: %v", len(body), len(m.Holds), err)
		}
		chunks.Add(1)
		inAll.Add(int32(len(m.Holds)))
		for i := range m.Holds {
			fmt.Fprintf(w, `{"index":%d,"outcome":"ok"}`+"\n", i)
		}
	})
	for size, want := range map[int]int32{0: 0, 1: 1, httpwire.MaxHolds: 1, httpwire.MaxHolds + 1: 2} {
		chunks.Store(0)
		if err := errors.Join(b.Renew(soon(t), holds(size))...); err != nil || chunks.Load() != want {
			t.Errorf("%d holds in %d chunks: %v", size, chunks.Load(), err)
		}
	}
	long := holds(1500)
	for i := range long {
		long[i].Name += strings.Repeat("\x01", httpwire.MaxName-20)
	}
	long[7].Name += strings.Repeat("x", 20)
	chunks.Store(0)
	inAll.Store(0)
	for i, err := range b.Renew(soon(t), long) {
		if (i == 7) != errors.Is(err, driver.ErrInvalid) || i != 7 && err != nil {
			t.Fatalf("hold %d: %v", i, err)
		}
	}
	if chunks.Load() < 9 || inAll.Load() != 1499 {
		t.Errorf("%d long names in %d chunks", inAll.Load(), chunks.Load())
	}
}
