package quorum_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// told is a member that says who it is.
type told struct {
	*memlock.Backend
	name string

	mu  sync.Mutex
	id  string
	err error
}

func (m *told) Caps() driver.Caps {
	c := m.Backend.Caps()
	c.Name = m.name
	return c
}

func (m *told) set(id string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.id, m.err = id, err
}

func (m *told) Identity(context.Context) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id, m.err
}

// tellers makes three members with these identities; one that is empty is not reached.
func tellers(ids ...string) (all []*told, backends []driver.Backend, stores []*memlock.Store) {
	for i, id := range ids {
		stores = append(stores, memlock.NewStore())
		m := &told{Backend: stores[i].Connect(), name: string(rune('a' + i))}
		if m.set(id, nil); id == "" {
			m.set("", errReset)
		}
		all, backends = append(all, m), append(backends, m)
	}
	return all, backends, stores
}

// One server under two addresses is refused.
func TestOneServerHasOneVote(t *testing.T) {
	_, backends, _ := tellers("1", "2", "1")
	if _, err := quorum.New(backends, nil); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "a and c are one server") {
		t.Errorf("%v; want ErrInvalid", err)
	}
	all, backends, _ := tellers("1", "2", "3")
	all[0].set("", driver.ErrSkip)
	all[1].set("", driver.ErrSkip)
	b, err := quorum.New(backends, nil)
	must.OK(t, err, "two that do not tell")
	b.Close()
}

// A member that is reached later is compared then, with what the others are at that moment.
func TestALateMemberIsCompared(t *testing.T) {
	for what, c := range map[string]struct {
		now  []string // at that moment
		vote bool
	}{
		"another server":                     {[]string{"1", "2", "3"}, true},
		"a twin":                             {[]string{"1", "2", "1"}, false},
		"the twin of one that was restarted": {[]string{"new", "2", "new"}, false},
		"where another one was":              {[]string{"new", "2", "1"}, true},
		"the twin of one that is silent":     {[]string{"", "2", "1"}, false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, backends, stores := tellers("1", "2", "")
				b := must.Get(quorum.New(backends, nil))(t)
				defer b.Close()
				votes := func(want int) {
					t.Helper()
					r := request(driver.Exclusive)
					take(t, b, r)
					synctest.Wait()
					expect.Equal(t, votesIn(stores, r.Hold), want, "votes")
					expect.OK(t, b.Release(t.Context(), r.Hold))
					time.Sleep(time.Minute)
					expect.Equal(t, votesIn(stores, r.Hold), 0, "votes are left")
				}
				votes(2)
				for i, id := range c.now {
					if all[i].set(id, nil); id == "" {
						all[i].set("", errReset)
					}
				}
				if !c.vote {
					votes(2)
					all[2].set("3", nil) // the mistake is mended
					time.Sleep(2 * time.Second)
				}
				votes(3)
			})
		})
	}
}

func votesIn(stores []*memlock.Store, h driver.Hold) (n int) {
	for _, s := range stores {
		info, _ := s.Connect().Inspect(context.Background(), h.Name)
		for _, o := range info.Holders {
			if o.Owner == h.Owner {
				n++
			}
		}
	}
	return n
}

// A member that is down at Open is compared once it is there.
func TestALateTwinOfAURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down, ids := false, map[string]string{"a": "1", "b": "2", "c": "1"}
		stores := map[string]*memlock.Store{}
		driver.Register("told", func(_ context.Context, u *url.URL) (driver.Backend, error) {
			if down && u.Opaque == "c" {
				return nil, errReset
			}
			return &told{Backend: stores[u.Opaque].Connect(), name: u.Opaque, id: ids[u.Opaque]}, nil
		})
		var all []*memlock.Store
		for name := range ids {
			stores[name] = memlock.NewStore()
			all = append(all, stores[name])
		}
		address := ofMembers("told:a", "told:b", "told:c")
		if _, err := quorum.Open(t.Context(), address); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "told:a and told:c are one server") {
			t.Errorf("%v; want ErrInvalid", err)
		}
		down = true
		b := must.Get(quorum.Open(t.Context(), address))(t)
		defer b.Close()
		down = false
		time.Sleep(time.Second)
		r := request(driver.Exclusive)
		take(t, b, r)
		synctest.Wait()
		expect.Equal(t, votesIn(all, r.Hold), 2, "votes")
	})
}

// hanging is a member that answers no question about who it is.
type hanging struct{ *told }

func (m hanging) Identity(ctx context.Context) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

// A member that is silent does not keep another one that is back from having a vote.
func TestSilentMemberKeepsNobodyOut(t *testing.T) {
	for silent, back := range map[int]int{1: 2, 2: 1} {
		synctest.Test(t, func(t *testing.T) {
			all, backends, _ := tellers("1", "", "")
			backends[silent] = hanging{all[silent]}
			b := must.Get(quorum.New(backends, nil))(t)
			defer b.Close()
			all[back].set("3", nil)
			expect.OK(t, expect.Err(b.Acquire(t.Context(), request(driver.Exclusive))))
		})
	}
}

// Members that can't know who they are, as servers that refuse the question, are not one server.
func TestEmptyIdentities(t *testing.T) {
	all, backends, _ := tellers("1", "", "")
	for _, m := range all[1:] {
		m.set("", nil)
	}
	b := must.Get(quorum.New(backends, nil))(t)
	defer b.Close()
	take(t, b, request(driver.Exclusive))
}
