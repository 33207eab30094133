// Package story is shared by the stories that test the examples. It has hosts that use locks, and a log of each host's actions.
package story

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
)

// Story is one run of an example. It is safe for concurrent use.
type Story struct {
	open  func() driver.Backend
	out   io.Writer
	began time.Time

	mu    sync.Mutex
	hosts []*Host
}

// New starts a story, which it writes to out. Open connects a host with the locks.
func New(open func() driver.Backend, out io.Writer) *Story {
	return &Story{open: open, out: out, began: time.Now()}
}

// Say writes that the named host did something just now.
func (s *Story) Say(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%6.2f s  %-10s %s\n", time.Since(s.began).Seconds(), who, fmt.Sprintf(format, args...))
}

// Close closes the hosts, and with them the locks that they hold.
func (s *Story) Close() error {
	s.mu.Lock()
	hosts := s.hosts
	s.hosts = nil
	s.mu.Unlock()
	var err error
	for _, h := range hosts {
		err = errors.Join(err, h.Close())
	}
	return err
}

// Together runs f in some goroutines for each host, and waits for them.
func Together(hosts []*Host, each int, f func(h *Host) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(hosts)*each)
	for i := range errs {
		wg.Go(func() { errs[i] = f(hosts[i%len(hosts)]) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TTL is the TTL of all locks.
const TTL = 2 * time.Second

// Host is one machine of the fleet: a client with a connection of its own, which knows the other
// hosts only by the locks.
type Host struct {
	*distlock.Client
	Name  string
	story *Story
	cable *cable
}

// Hosts connects n hosts.
func (s *Story) Hosts(n int) ([]*Host, error) {
	var hosts []*Host
	for i := range n {
		h, err := s.host(fmt.Sprintf("host %d", i+1))
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

func (s *Story) host(name string) (*Host, error) {
	wire := &cable{Backend: s.open()}
	opts := &distlock.Options{TTL: TTL, Meta: map[string]string{"host": name}}
	locks, err := distlock.New(wire, opts)
	if err != nil {
		return nil, errors.Join(err, wire.Backend.Close())
	}
	h := &Host{locks, name, s, wire}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts = append(s.hosts, h)
	return h, nil
}

// Say reports that the host did something just now.
func (h *Host) Say(format string, args ...any) { h.story.Say(h.Name, format, args...) }

// Unplug makes all of the host's calls to its backend fail, until Plug.
func (h *Host) Unplug() { h.cable.cut.Store(true) }

// Plug undoes Unplug.
func (h *Host) Plug() { h.cable.cut.Store(false) }

// Die ends the host as a power cut does: it releases nothing.
func (h *Host) Die() error {
	h.Unplug()
	return h.cable.Backend.Close()
}

// Close closes the host's client. It ignores errors of a host that is cut off.
func (h *Host) Close() error {
	err := h.Client.Close()
	if h.cable.cut.Load() {
		return nil
	}
	return err
}

// cable connects a host with its backend.
type cable struct {
	driver.Backend
	cut atomic.Bool
}

var errCut = errors.New("the cable is cut")

func (c *cable) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if c.cut.Load() {
		return driver.Grant{}, errCut
	}
	return c.Backend.Acquire(ctx, r)
}

func (c *cable) Renew(ctx context.Context, holds []driver.Hold) []error {
	if !c.cut.Load() {
		return c.Backend.Renew(ctx, holds)
	}
	return slices.Repeat([]error{errCut}, len(holds))
}

func (c *cable) Release(ctx context.Context, h driver.Hold) error {
	if c.cut.Load() {
		return errCut
	}
	return c.Backend.Release(ctx, h)
}

func (c *cable) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if w, ok := c.Backend.(driver.Watcher); ok && !c.cut.Load() {
		return w.Watch(ctx, r)
	}
	return driver.Watch{}, driver.ErrSkip
}
