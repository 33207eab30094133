package redisconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
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
func NewSentinel(o SentinelOptions) Client {
	sentinels := map[string]Server{}
	for _, addr := range o.Addrs {
		sentinels[addr] = o.DialSentinel(addr)
	}
	return newRouter(topology{
		name: o.Name, maxAge: sentinelInterval,
		open: func(_ context.Context, addr string) (Server, error) { return o.DialMaster(addr), nil },
		load: func(ctx context.Context, _ []string, _ Dialer) (slotTable, error) {
			master, err := firstAnswer(ctx, shuffled(o.Addrs), func(ctx context.Context, addr string) (string, error) {
				return masterBy(ctx, addr, sentinels[addr], o.Master)
			})
			return slotTable{master}, err
		},
		close: func() {
			for _, s := range sentinels {
				s.Close()
			}
		},
	})
}

// masterBy queries the sentinel at addr for the address of a master.
func masterBy(ctx context.Context, addr string, sentinel Server, master string) (string, error) {
	reply, err := sentinel.Do(ctx, []string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", master})
	re := (*ReplyError)(nil)
	switch list, _ := reply.([]any); {
	case errors.As(err, &re) && strings.Contains(re.Text, "unknown command"):
		return "", fmt.Errorf("%w: the server at %s is no sentinel: want the addresses of sentinels, or redis:// for a server without", driver.ErrInvalid, addr)
	case errors.As(err, &re) && (re.HasCode("NOAUTH") || re.HasCode("WRONGPASS")):
		return "", Invalid(fmt.Sprintf("the sentinel %s wants another user or password: sentinel_user, sentinel_password", addr), err)
	case err != nil:
		return "", fmt.Errorf("sentinel %s: %w", addr, Explain(err))
	case reply == nil:
		return "", fmt.Errorf("%w: the sentinel %s knows no master named %q", driver.ErrInvalid, addr, master)
	case len(list) != 2:
		return "", fmt.Errorf("sentinel %s: %w", addr, errUnexpected)
	default:
		return net.JoinHostPort(textOf(list[0]), textOf(list[1])), nil
	}
}
