package memlock

import (
	"context"
	"fmt"
	"net/url"
	"sync"

	"github.com/distlock/distlock/driver"
)

func init() {
	driver.Register("mem", func(_ context.Context, u *url.URL) (driver.Backend, error) { return openURL(u) })
}

// named holds the stores of mem:NAME. They are never dropped: a hold outlives the
// connection that took it.
var named = struct {
	sync.Mutex
	m map[string]*Store
}{m: map[string]*Store{}}

func openURL(u *url.URL) (*Backend, error) {
	if err := driver.NewParams(u).Err(); err != nil {
		return nil, err
	}
	if u.Host != "" || u.Path != "" || u.User != nil || u.Fragment != "" {
		return nil, fmt.Errorf("%w: URL: want mem: for a store of its own, or mem:NAME for one shared in this process", driver.ErrInvalid)
	}
	name, err := url.PathUnescape(u.Opaque)
	if err != nil {
		return nil, fmt.Errorf("%w: URL: %w", driver.ErrInvalid, err)
	}
	if name == "" {
		return New(), nil
	}
	named.Lock()
	defer named.Unlock()
	s := named.m[name]
	if s == nil {
		s = newStore("mem:" + url.PathEscape(name))
		named.m[name] = s
	}
	return s.Connect(), nil
}
