// Package redisconn is the transport of package redislock. It takes keys, commands and channels, and
// returns replies, messages and errors. It knows nothing of locks.
//
// A Client finds the Server that has a key: the only one, one of a cluster, or the master that
// sentinels name. A Server sends commands once and never repeats one that may have been executed.
// It has connections of its own (NewServer), also if a user's client says how to make them (FromGoRedis).
package redisconn

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/wait"
)

// Client sends commands to a single server, or to the one of several servers that has the key. It is safe for concurrent use.
//
// The slot table of several says which server has which slot. Each server has connections of its own, so that a
// slow or dead server stalls only its own slots. The table is loaded again when a server says that it is wrong, or does not
// answer, and, if the topology has a maximum age, from time to time while there is traffic.
type Client struct {
	only     *Server // nil: the table says
	topology topology
	ctx      context.Context // ends at Close
	cancel   context.CancelFunc
	wg       wait.Group

	mu           sync.Mutex
	table        slotTable          // guarded also inside
	servers      map[string]*Server // by address
	refreshing   *refreshing        // nil: none is under way
	refreshBegan time.Time          // when the last load began
	refreshEnded time.Time          // when it ended, with or without success
}

// NewSingle returns the client of one server.
func NewSingle(name string, s *Server) *Client {
	c := newClient(topology{name: name})
	c.only = s
	return c
}

func newClient(p topology) *Client {
	c := &Client{topology: p, servers: map[string]*Server{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Name returns the name of the store.
func (c *Client) Name() string { return c.topology.name }

// Slotted reports whether different servers have different keys, and refuse a script with keys of several slots.
func (c *Client) Slotted() bool { return c.topology.slotted }

// Slot returns the key's slot. A script may have keys of one slot only.
func (c *Client) Slot(key string) int {
	if c.topology.slotted {
		return SlotOf(key)
	}
	return 0
}

// At returns the server that has the key now, or any server if key is empty.
func (c *Client) At(ctx context.Context, key string) (*Server, error) {
	if c.only != nil {
		return c.only, nil
	}
	if err := c.fresh(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	addr := c.table.owner(key)
	c.mu.Unlock()
	if addr == "" {
		c.refresh()
		return nil, fmt.Errorf("no server of the cluster has slot %d", SlotOf(key))
	}
	return c.open(addr)
}

// Do is DoAll for one command.
func (c *Client) Do(ctx context.Context, key string, args []string) (any, error) {
	a := c.DoAll(ctx, key, [][]string{args})[0]
	return a.Reply, a.Err
}

// DoAll sends commands to the server that has the key, or to any server if key is empty. It is like Server.DoAll, but repeats
// commands that a server refused to execute because it is not ready, or another server has the key.
func (c *Client) DoAll(ctx context.Context, key string, commands [][]string) []Answer {
	s, err := c.At(ctx, key)
	if err != nil {
		return FailAll(len(commands), err)
	}
	got := s.DoAll(ctx, commands)
	if FirstError(got) != nil {
		got = c.redirected(ctx, key, commands, got)
	}
	return got
}

// redirected follows the redirections in the answers to commands, if there are any, and returns the last answers.
func (c *Client) redirected(ctx context.Context, key string, commands [][]string, got []Answer) []Answer {
	var p retryPauses
	for sent := 1; ; sent++ {
		why, to := redirectionOfAll(commands, got)
		switch {
		case c.only != nil && (why != notReady || !p.wait(ctx)):
			return explainSingle(got)
		case c.only != nil:
			got = c.only.DoAll(ctx, commands)
			continue
		case why == executed:
			if TransportError(got) != nil {
				c.Refresh()
			}
			return got
		case why == movedTo:
			c.setOwner(SlotOf(key), to)
		}
		if sent == maxSends || sent >= apartSends && why == notReady && Apart(got[0].Err) {
			return got
		}
		// The first redirection is followed at once. Servers that disagree or are not ready need
		// time.
		if why == notReady || sent > 1 {
			c.Refresh()
			if !p.wait(ctx) {
				return got
			}
		}
		s, err := c.serverAt(ctx, key, to)
		switch {
		case err != nil:
			return got
		case why == askAt:
			asking := withAsking(commands)
			got = withoutAsking(asking, s.DoAll(ctx, asking))
		default:
			got = s.DoAll(ctx, commands)
		}
	}
}

// serverAt returns the server at an address, or the server that has the key if there is no
// address.
func (c *Client) serverAt(ctx context.Context, key, addr string) (*Server, error) {
	if addr != "" {
		return c.open(addr)
	}
	return c.At(ctx, key)
}

// explainSingle explains the errors of a server that is part of a cluster.
func explainSingle(got []Answer) []Answer {
	for i, a := range got {
		if re, is := AsReply(a.Err); is && (re.HasCode("MOVED") || re.HasCode("ASK") || re.HasCode("CROSSSLOT")) {
			got[i].Err = Refuse(fmt.Sprintf("the server is part of a Redis Cluster: want redis+cluster://, or a client for clusters: %v", re), re).Lasts()
		}
	}
	return got
}

// MaxTries is how often a change is tried again because a key was changed meanwhile, or another
// server has it.
const MaxTries = 5

// Sender sends commands on one connection.
type Sender func(commands [][]string) []Answer

// Dedicated calls f with a connection of its own to the server that has a key. If f returns a
// server's refusal to execute, because it is the wrong server, Dedicated finds the right one and calls
// f again. none is a key of the same slot that never exists.
//
// If ctx ends first, the error is an *UnansweredError. The connection may be one that a firewall
// has forgotten, so later calls go through new ones.
func Dedicated(ctx context.Context, c *Client, key, none string, f func(send Sender) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began, done, result := time.Now(), make(chan struct{}), error(nil)
	go func() {
		defer close(done)
		for range MaxTries {
			if result = onConn(ctx, c, key, f); !NotExecuted(result) {
				return
			}
			if err := Probe(ctx, c, none); err != nil {
				result = err
				return
			}
		}
	}()
	select {
	case <-done:
		return result
	case <-ctx.Done():
		if time.Since(began) >= 100*time.Millisecond {
			go c.Reconnect(key)
		}
		return &UnansweredError{Err: ctx.Err(), Done: done}
	}
}

func onConn(ctx context.Context, c *Client, key string, f func(send Sender) error) error {
	at, err := c.At(ctx, key)
	if err != nil {
		return err
	}
	conn, err := at.Dedicated(ctx)
	if err != nil {
		return err
	}
	broken := false
	// A command that was sent may be executed later, until it is answered or the connection times out: ctx does not end it.
	err = f(func(commands [][]string) []Answer {
		got := conn.DoAll(commands)
		broken = broken || TransportError(got) != nil
		return got
	})
	conn.Close(broken || NotExecuted(err))
	return err
}

// Probe changes nothing, and succeeds at the server that has the slot of a key that never exists, and is a master.
func Probe(ctx context.Context, c *Client, none string) error {
	reply, err := c.Do(ctx, none, []string{"DEL", none})
	if _, is := reply.(int64); !is && err == nil {
		err = ErrUnexpected
	}
	return Explain(err)
}

// Reconnect makes the server that has the key use new connections, since a request has had no answer
// for too long.
func (c *Client) Reconnect(key string) {
	if at, err := c.At(context.Background(), key); err == nil {
		at.Reconnect()
	}
}

// The schemes of servers' names, each also with TLS but the socket's.
const (
	SchemeServer   = "redis"
	SchemeSocket   = "redis+unix"
	SchemeSentinel = "redis+sentinel"
	SchemeCluster  = "redis+cluster"
)

// ServerName returns the name of a server's database.
func ServerName(scheme, addr string, db int) string {
	return fmt.Sprintf("%s://%s/%d", scheme, addr, db)
}

// A command that a server refused because another server has its key, or because it is not ready,
// was not executed. It is sent again a few times: moving a key does not take long. No other command
// is sent again.
const (
	maxSends   = 8
	apartSends = 4 // while a slot moves: what needs no other key can go on
	minPause   = 10 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// retryPauses counts the pauses between repetitions.
type retryPauses int

// wait waits for the next pause, and reports whether ctx lives. It does not wait behind the last repetition.
func (p *retryPauses) wait(ctx context.Context) bool {
	if *p == maxSends-1 {
		return false
	}
	pause := wait.Backoff(int(*p), minPause, maxPause)
	*p++
	return wait.Sleep(ctx, pause) == nil
}

// withAsking puts ASKING before each command or transaction. The server that is just getting a key
// executes only such commands.
func withAsking(commands [][]string) [][]string {
	list := make([][]string, 0, 2*len(commands))
	inside := false
	for _, c := range commands {
		if !inside {
			list = append(list, []string{"ASKING"})
		}
		switch c[0] {
		case "MULTI":
			inside = true
		case "EXEC", "DISCARD":
			inside = false
		}
		list = append(list, c)
	}
	return list
}

// withoutAsking removes the answers to ASKING.
func withoutAsking(sent [][]string, got []Answer) []Answer {
	kept := got[:0]
	for i, a := range got {
		if sent[i][0] != "ASKING" {
			kept = append(kept, a)
		}
	}
	return kept
}
