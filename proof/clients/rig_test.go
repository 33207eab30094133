//go:build linux

package clients

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/server"
)

// rig is a server in this process behind a network that can be broken, and a Go client of the same store.
type rig struct {
	*cell
	store  *memlock.Store
	seen   *seenCalls
	c      *distlock.Client
	proxy  *faultproxy.Proxy
	url    string
	tokens string // the file of the clients' tokens; empty: they need none
	access *server.Access

	mu     sync.Mutex
	server *server.Server // the one that serves now
	addr   string
	status int // that a proxy answers in place of the server; 0: none
}

// newRig makes a rig. With tokens its clients need the token.
func newRig(c *cell, tokens bool) *rig {
	c.Helper()
	r := &rig{cell: c, store: memlock.NewStore()}
	r.seen = &seenCalls{Backend: r.store.Connect(), names: map[string]*seenName{}, gates: map[string]*gate{}}
	r.c = must.Get(distlock.New(r.store.Connect(), nil))(c)
	c.Cleanup(func() {
		r.c.Close()
		r.seen.Close()
	})
	if tokens {
		r.tokens = filepath.Join(c.TempDir(), "tokens")
		r.admit()
		r.access = must.Get(server.OpenAccess(r.tokens, nil))(c)
	}
	r.serve()
	r.proxy = faultproxy.New(c, r.addr)
	r.url = "http://" + r.proxy.Addr()
	return r
}

// serve starts another server, which is used from now on.
func (r *rig) serve() {
	r.Helper()
	s := must.Get(server.New(r.seen, server.Options{Access: r.access}))(r.cell)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		status := r.status
		r.mu.Unlock()
		if status != 0 {
			http.Error(w, "not from distlock", status)
			return
		}
		s.ServeHTTP(w, req)
	}))
	r.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	r.mu.Lock()
	r.server, r.addr = s, srv.Listener.Addr().String()
	r.mu.Unlock()
}

// gone ends all connections, and lets no other reach the server.
func (r *rig) gone() { r.proxy.Retarget(testserver.DeadAddr(r.cell)) }

// back ends gone.
func (r *rig) back() { r.proxy.Retarget(r.addr) }

// refuses lets a proxy answer all requests from now on, also those on open connections; 0 ends that.
func (r *rig) refuses(status int) {
	r.mu.Lock()
	r.status = status
	r.mu.Unlock()
	r.proxy.Cut()
}

// drain drains the server, and replaces it.
func (r *rig) drain() {
	old := r.server
	drained, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	must.OK(r.cell, old.Drain(drained))
	r.serve()
	r.back()
}

// admit lets the clients in.
func (r *rig) admit() {
	r.rights(fmt.Sprintf("ci sha256:%x lock,see *\n", sha256.Sum256([]byte(token))))
}

// deny takes the clients' rights away, and returns when the server knows it.
func (r *rig) deny() {
	r.Helper()
	r.rights("# none\n")
	r.eventually("a denial", func() bool {
		req := must.Get(http.NewRequestWithContext(r.Context(), http.MethodGet, "http://"+r.addr+"/v1", nil))(r.cell)
		req.Header.Set("Authorization", "Bearer "+token)
		resp := must.Get(http.DefaultClient.Do(req))(r.cell)
		resp.Body.Close()
		return resp.StatusCode == http.StatusUnauthorized
	})
}

func (r *rig) rights(text string) {
	next := r.tokens + ".next"
	must.OK(r.cell, os.WriteFile(next, []byte(text), 0o600))
	must.OK(r.cell, os.Rename(next, r.tokens))
}

// isFree reports whether nobody holds a lock.
func (r *rig) isFree(name string) bool {
	info, err := r.c.Inspect(r.Context(), name)
	return err == nil && len(info.Holders) == 0
}

// waiters returns how many wait for a lock.
func (r *rig) waiters(name string) int {
	info, err := r.c.Inspect(r.Context(), name)
	if err != nil {
		return 0
	}
	return info.WaiterCount
}

// hold lets another hold a lock.
func (r *rig) hold(name string) *distlock.Lease {
	r.Helper()
	return must.Get(r.c.Mutex(name).TryLock(r.Context()))(r.cell)
}

// holds checks that a lock is held with a fence.
func (r *rig) holds(name string, fence uint64) {
	r.Helper()
	info := must.Get(r.c.Inspect(r.Context(), name))(r.cell)
	if len(info.Holders) != 1 || info.Holders[0].Fence != fence {
		r.Errorf("the holders of %s are %+v, want one with fence %d", name, info.Holders, fence)
	}
}

// lose ends a hold of a client, as an operator may.
func (r *rig) lose(name string) {
	r.Helper()
	must.OK(r.cell, r.c.ForceUnlock(r.Context(), must.Get(r.c.Inspect(r.Context(), name))(r.cell)))
}

// seenCalls are a store's calls by the server.
type seenCalls struct {
	*memlock.Backend
	mu    sync.Mutex
	names map[string]*seenName
	gates map[string]*gate // by call
}

// gate holds back the answer of a call.
type gate struct {
	done   chan struct{} // closed when the store has done it
	opened chan struct{}
}

// holdBack holds back the answer of the next acquire, renew or release until the gate is opened.
func (s *seenCalls) holdBack(call string) *gate {
	g := &gate{make(chan struct{}), make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gates[call] = g
	return g
}

// pass lets an answer pass, perhaps later.
func (s *seenCalls) pass(call string) {
	s.mu.Lock()
	g := s.gates[call]
	delete(s.gates, call)
	s.mu.Unlock()
	if g != nil {
		close(g.done)
		<-g.opened
	}
}

// awaits waits until the call of a gate was done.
func (r *rig) awaits(g *gate) {
	r.Helper()
	select {
	case <-g.done:
	case <-time.After(r.patience):
		r.Fatal("there was no call")
	}
}

// loseAnswer lets what do a call whose answer is lost.
func (r *rig) loseAnswer(call string, what func()) {
	r.Helper()
	g := r.seen.holdBack(call)
	defer close(g.opened)
	what()
	r.awaits(g)
	r.proxy.Cut()
}

// seenName counts the calls for a name.
type seenName struct{ acquires, grants, renewals, releases, landed int }

// of returns the calls for a name so far.
func (s *seenCalls) of(name string) seenName {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.names[name]; n != nil {
		return *n
	}
	return seenName{}
}

// total returns how many names there were calls for.
func (s *seenCalls) total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.names)
}

func (s *seenCalls) note(name string, f func(*seenName)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names[name] == nil {
		s.names[name] = &seenName{}
	}
	f(s.names[name])
}

func (s *seenCalls) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s.note(r.Name, func(n *seenName) { n.acquires++ })
	g, err := s.Backend.Acquire(ctx, r)
	if err == nil {
		s.note(r.Name, func(n *seenName) { n.grants++ })
		s.pass("acquire")
	}
	return g, err
}

func (s *seenCalls) Renew(ctx context.Context, holds []driver.Hold) []error {
	for _, h := range holds {
		s.note(h.Name, func(n *seenName) { n.renewals++ })
	}
	defer s.pass("renew")
	return s.Backend.Renew(ctx, holds)
}

func (s *seenCalls) Release(ctx context.Context, h driver.Hold) error {
	err := s.Backend.Release(ctx, h)
	s.note(h.Name, func(n *seenName) {
		n.releases++
		if err == nil {
			n.landed++
		}
	})
	s.pass("release")
	return err
}
