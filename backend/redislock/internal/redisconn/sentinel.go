package redisconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// sentinelInterval is how often sentinels are queried. A replaced master that can still be reached
// may grant locks for this long, and until they answer.
const sentinelInterval = time.Second

// SentinelOptions say how to reach sentinels and the master.
type SentinelOptions struct {
	Addrs        []string
	Master       string
	DialSentinel func(addr string) Server // a sentinel
	DialMaster   func(addr string) Server // a master
	Name         string
}

// NewSentinel returns the client of the master that sentinels name.
func NewSentinel(o SentinelOptions) Client { return newRouter(&sentinelTopology{SentinelOptions: o}) }

// sentinelTopology is the topology of a master that Redis Sentinel watches.
type sentinelTopology struct {
	SentinelOptions

	mu     sync.Mutex
	asked  map[string]Server // sentinels, by address
	closed bool
}

func (s *sentinelTopology) open(_ context.Context, addr string) (Server, error) {
	return s.DialMaster(addr), nil
}
func (s *sentinelTopology) maxAge() time.Duration { return sentinelInterval }
func (s *sentinelTopology) slotted() bool         { return false }
func (s *sentinelTopology) strict() bool          { return false }
func (s *sentinelTopology) name() string          { return s.Name }

func (s *sentinelTopology) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, c := range s.asked {
		c.Close()
	}
}

func (s *sentinelTopology) load(ctx context.Context, _ []string, _ Dialer) (slotTable, error) {
	addr, err := firstAnswer(ctx, shuffled(s.Addrs), s.masterBy)
	if err != nil {
		return nil, err
	}
	return slotTable{{0, slots - 1, addr}}, nil
}

// masterBy queries a sentinel for the master.
func (s *sentinelTopology) masterBy(ctx context.Context, addr string) (string, error) {
	c, err := s.sentinel(addr)
	if err != nil {
		return "", err
	}
	reply, err := c.Do(ctx, []string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Master})
	re := (*ReplyError)(nil)
	switch list, _ := reply.([]any); {
	case errors.As(err, &re) && strings.Contains(re.Text, "unknown command"):
		return "", fmt.Errorf("%w: the server at %s is no sentinel: want the addresses of sentinels, or redis:// for a server without", driver.ErrInvalid, addr)
	case errors.As(err, &re) && (re.HasCode("NOAUTH") || re.HasCode("WRONGPASS")):
		return "", Invalid(fmt.Sprintf("the sentinel %s wants another user or password: sentinel_user, sentinel_password", addr), err)
	case err != nil:
		return "", fmt.Errorf("sentinel %s: %w", addr, Explain(err))
	case reply == nil:
		return "", fmt.Errorf("%w: the sentinel %s knows no master named %q", driver.ErrInvalid, addr, s.Master)
	case len(list) != 2:
		return "", fmt.Errorf("sentinel %s: %w", addr, errUnexpected)
	default:
		return net.JoinHostPort(textOf(list[0]), textOf(list[1])), nil
	}
}

func (s *sentinelTopology) sentinel(addr string) (Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, driver.ErrClosed
	}
	if s.asked == nil {
		s.asked = map[string]Server{}
	}
	if s.asked[addr] == nil {
		s.asked[addr] = s.DialSentinel(addr)
	}
	return s.asked[addr], nil
}
