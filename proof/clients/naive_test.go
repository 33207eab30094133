//go:build linux

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/distlock/distlock/driver"
)

// naiveClient sends each call once to its first server, believes what it hears, renews nothing, and checks nothing.
type naiveClient struct {
	answers
	servers sync.Map // by number of the call
	leases  sync.Map
	slots   chan struct{}
}

// naiveLease is a lock that it thinks to have.
type naiveLease struct{ server, name, owner string }

func naiveProgram(_, _ string) error {
	n := &naiveClient{slots: make(chan struct{}, 16)}
	if err := hear(n.make); err != nil {
		return err
	}
	select {} // no program ends while it has leases
}

// post makes a call, and returns its status and fence.
func (n *naiveClient) post(server, call string, body map[string]any) (status int, fence string) {
	text, _ := json.Marshal(body)
	r, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, server+"/v1/"+call, bytes.NewReader(text))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	var answer struct{ Fence string }
	_ = json.NewDecoder(resp.Body).Decode(&answer)
	return resp.StatusCode, answer.Fence
}

func (n *naiveClient) acquire(server string, a args, wait int) (*naiveLease, string) {
	n.slots <- struct{}{}
	defer func() { <-n.slots }()
	l := &naiveLease{server, a.Get("name"), driver.NewOwner()}
	body := map[string]any{"name": l.name, "owner": l.owner, "mode": "exclusive", "ttl_ms": max(a.int("ttl"), 2000), "wait_ms": wait}
	if a.Has("limit") {
		body["mode"], body["limit"] = "counted", a.int("limit")
	}
	status, fence := n.post(server, "acquire", body)
	if status != http.StatusOK {
		return nil, fmt.Sprint("status ", status)
	}
	return l, fence
}

func (n *naiveClient) release(l *naiveLease) (status int) {
	status, _ = n.post(l.server, "release", map[string]any{"name": l.name, "owner": l.owner, "mode": "exclusive"})
	return status
}

func (n *naiveClient) make(call, what string, a args) {
	server, _ := n.servers.Load(a.Get("client"))
	url, _ := server.(string)
	switch what {
	case "open":
		first, _, _ := strings.Cut(a.Get("urls"), ",")
		n.servers.Store(call, first)
		n.say(call, "opened")
	case "lock":
		l, text := n.acquire(url, a, 20_000)
		if l == nil {
			n.say(call, "error", "Unavailable", text)
			return
		}
		n.leases.Store(call, l)
		n.say(call, "held", text)
	case "check", "extend":
		n.say(call, "held")
	case "release":
		l, _ := n.leases.Load(a.Get("lease"))
		if n.release(l.(*naiveLease)) == 0 {
			n.say(call, "error", "Unavailable", "no answer")
			return
		}
		n.say(call, "released")
	case "cancel":
		n.say(a.Get("call"), "cancelled")
	case "forget":
		n.say(call, "forgotten")
	case "collect":
		n.say(call, "collected")
	case "twice":
		l, _ := n.acquire(url, a, 20_000)
		n.release(l)
		n.say(call, "locked unlocked") // no call is made for the second block
	case "shared":
		n.shared(call, url, a)
	case "turns":
		_ = manyTurns(&n.answers, call, a, func(i int) (func(), error) {
			if i > a.int("n")/2 {
				select {} // there are no more connections
			}
			l, text := n.acquire(url, a, 20_000)
			if l == nil {
				return nil, fmt.Errorf("held: %s", text)
			}
			return func() { n.release(l) }, nil
		})
	default:
		n.say(call, "accepted")
	}
}

// shared gives two tasks one lease.
func (n *naiveClient) shared(call, url string, a args) {
	u := sharedUse{limit: a.int("limit")}
	l, _ := n.acquire(url, a, 20_000)
	u.run(func(work func()) error {
		work()
		n.release(l)
		return nil
	}, func() (got int) {
		for range u.limit {
			if other, _ := n.acquire(url, a, 0); other != nil {
				defer n.release(other)
				got++
			}
		}
		return got
	})
	n.say(call, u.most, u.ran, u.raised, u.free)
}
