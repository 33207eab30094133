package served

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The fence that a server has answered names the hold in all that the server says and does from then on, whether the store tells
// fences or not.
func TestAnsweredFence(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore()
	file := func(t *testing.T) driver.Backend {
		return open(t, "sqlite:"+url.PathEscape(filepath.Join(t.TempDir(), "locks.db")))
	}
	for what, connect := range map[string]func(t *testing.T) driver.Backend{
		"memory": func(*testing.T) driver.Backend { return store.Connect() },
		"SQLite": file,
		"Redis":  func(t *testing.T) driver.Backend { return open(t, testserver.SharedRedis(t).URL()) },
		"etcd":   func(t *testing.T) driver.Backend { return open(t, testserver.SharedEtcd(t).URL()+patient) },
		"quorum, which tells none": func(t *testing.T) driver.Backend {
			return must.Get(quorum.New([]driver.Backend{file(t), file(t), file(t)}, nil))(t)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			answeredFence(t, start(t, func() driver.Backend { return connect(t) }), what != "quorum, which tells none")
		})
	}
}

func answeredFence(t *testing.T, p *process, told bool) {
	name := "fence " + driver.NewOwner()
	path := "http://" + p.addr + "/v1/locks/" + url.PathEscape(name)
	c := must.Get(distlock.New(open(t, p.url()), locktest.Patient()))(t)
	t.Cleanup(func() { c.Close() })
	shown := func(fence uint64) uint64 {
		if !told {
			return 0
		}
		return fence
	}
	leaders := follow(t, c.Election(name, distlock.WithTTL(time.Second)))
	var terms []uint64
	for range 3 {
		var got struct {
			Owner string `json:"owner"`
			Fence uint64 `json:"fence,string"`
		}
		call(t, http.MethodPost, path+"?ttl=1m", "", &got)
		terms = append(terms, got.Fence)
		leaders.await(shown(got.Fence))
		holder := func(what string, h driver.Holder) {
			t.Helper()
			expect.Equal(t, h.Fence, shown(got.Fence), what)
		}
		info := must.Get(c.Inspect(t.Context(), name))(t)
		holder("Inspect", info.Holders[0])
		holder("Leader", must.Get(c.Election(name).Leader(t.Context()))(t))
		var held *distlock.HeldError
		if _, err := c.Mutex(name).TryLock(t.Context()); !errors.As(err, &held) {
			t.Fatal(err)
		}
		for _, h := range held.Holders { // some stores name none in a refusal
			holder("a refusal", h)
		}
		lease := must.Get(c.Attach(t.Context(), name, got.Owner))(t)
		expect.Equal(t, lease.Fence(), shown(got.Fence), "Attach")
		must.OK(t, lease.Extend(t.Context(), time.Minute))
		expect.Equal(t, lease.Fence(), shown(got.Fence), "a renewed lease")
		call(t, http.MethodPost, path+"/break", fmt.Sprintf(`{"fence":"%d"}`, got.Fence), nil)
		expect.Be(t, lease.Unlock(t.Context()), distlock.ErrLost, "after the break")
	}
	if !slices.IsSorted(terms) {
		t.Errorf("the fences are %d", terms)
	}
	leaders.end()
	if told {
		expect.Equal(t, fmt.Sprint(leaders.fences), fmt.Sprint(terms), "Leaders yields each term once")
	}
}

// call makes a request of the API, and reads the answer.
func call(t *testing.T, method, path, body string, out any) {
	t.Helper()
	req := must.Get(http.NewRequestWithContext(t.Context(), method, path, bytes.NewBufferString(body)))(t)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp := must.Get(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	text := must.Get(io.ReadAll(resp.Body))(t)
	if resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s %s", method, path, resp.Status, text)
	}
	if out != nil {
		must.OK(t, json.Unmarshal(text, out))
	}
}

// followed has what Leaders yields.
type followed struct {
	t   *testing.T
	end func()

	mu     sync.Mutex
	fences []uint64 // of leaders
}

func follow(t *testing.T, e *distlock.Election) *followed {
	f, over := &followed{t: t}, make(chan bool)
	ctx, cancel := context.WithCancel(t.Context())
	f.end = func() { cancel(); <-over }
	t.Cleanup(f.end)
	go func() {
		defer close(over)
		noAnswer := false
		for h, err := range e.Leaders(ctx) {
			f.mu.Lock()
			again := noAnswer && len(f.fences) > 0 && f.fences[len(f.fences)-1] == h.Fence
			if err == nil && !again {
				f.fences = append(f.fences, h.Fence)
			}
			noAnswer = errors.Is(err, distlock.ErrUnavailable)
			f.mu.Unlock()
		}
	}()
	return f
}

// await waits until Leaders has yielded a fence.
func (f *followed) await(fence uint64) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("Leaders yields %d", fence), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.Contains(f.fences, fence)
	})
}
