package kubelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/wait"
)

var (
	_ record.Store   = (*store)(nil)
	_ record.Watcher = (*store)(nil)
)

// store keeps each record in a Lease.
type store struct {
	*client
	prefix string
	now    func() time.Time
	clock  bool // the server says how old a Lease is

	life  context.Context // ends with Close, which holds mu then
	stop  context.CancelFunc
	mu    sync.Mutex
	tasks wait.Group
}

// Read gets the Lease.
func (s *store) Read(ctx context.Context, name string) (record.Record, error) {
	l := &lease{}
	err := s.lease(ctx, "get", names.Encode(s.prefix+name), nil, l)
	if errors.Is(err, errAbsent) {
		return record.Record{}, nil
	}
	if err != nil {
		return record.Record{}, err
	}
	r, err := l.record()
	if s.clock {
		r.Age = record.Age(l.Metadata.written(), l.read)
	}
	return r, err
}

// dryRun creates a Lease that the server does not keep, and reports whether its times are of one clock.
func (s *store) dryRun(ctx context.Context) (bool, error) {
	l, err := written("distlock-probe-"+driver.NewOwner(), record.Record{}, s.now())
	if err != nil {
		return false, err
	}
	answer, began := &lease{}, time.Now()
	err = s.call(ctx, dryRun, s.leases()+"?dryRun=All", l, answer)
	if errors.Is(err, driver.ErrInvalid) || errors.Is(err, record.ErrRefused) {
		return false, nil // the login may read only, or there is no such namespace: the first call says so
	}
	return record.OneClock(answer.Metadata.written(), answer.read, time.Since(began)), err
}

// Write creates or updates the Lease.
func (s *store) Write(ctx context.Context, name string, r record.Record) (record.Written, error) {
	l, err := written(s.prefix+name, r, s.now())
	if err != nil {
		return record.Written{}, err
	}
	answer := &lease{}
	if r.Version == "" {
		err = s.lease(ctx, "create", "", l, answer)
	} else {
		err = s.lease(ctx, "update", l.Metadata.Name, l, answer)
	}
	if err != nil {
		return record.Written{}, err
	}
	w, err := answer.record()
	return record.Written{Version: w.Version, Stamp: w.Stamp, Rest: answer}, err
}

// List lists the Leases.
func (s *store) List(ctx context.Context, prefix string, yield func(name string, r record.Record) bool) error {
	var all struct{ Items []*lease }
	if err := s.lease(ctx, "list", "", nil, &all); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	for _, l := range all.Items {
		name, ours := strings.CutPrefix(l.lock(), s.prefix)
		if !ours || name == "" || !strings.HasPrefix(name, prefix) {
			continue
		}
		if r, err := l.record(); err == nil && !yield(name, r) {
			return nil
		}
	}
	return nil
}

// Close ends all watches.
func (s *store) Close() error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.tasks.Wait()
	transport, _ := s.transport.Last()
	transport.CloseIdleConnections()
	return nil
}

// armTime bounds how long the server may take to open a stream again.
const armTime = 10 * time.Second

// Watch opens a stream anew that ends, as of a server that stops or has compacted what came next.
func (s *store) Watch(ctx context.Context, name string, changed func(record.Record)) (func(), error) {
	life, stop := context.WithCancel(s.life)
	forward, err := s.stream(ctx, life, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.life.Err() != nil {
		stop()
		return nil, errors.Join(err, s.life.Err())
	}
	s.tasks.Go(func() {
		for try := 0; life.Err() == nil; try++ {
			if began := time.Now(); err == nil {
				forward(changed)
				if time.Since(began) > armTime { // one that ends soon may end as soon again
					try = 0
				}
			}
			wait.Sleep(life, wait.Backoff(try, 10*time.Millisecond, armTime/2))
			arming, cancel := context.WithTimeout(life, armTime)
			forward, err = s.stream(arming, life, name)
			cancel()
			changed(record.Record{})
		}
	})
	return stop, nil
}

// stream opens a stream of the changes of a Lease, which begins with the Lease as it is. What it returns tells them until the
// stream or life ends. ctx bounds the opening only.
func (s *store) stream(ctx, life context.Context, name string) (forward func(changed func(record.Record)), err error) {
	of, hangUp := context.WithCancel(life)
	defer context.AfterFunc(ctx, hangUp)()
	query := url.Values{"watch": {"1"}, "fieldSelector": {"metadata.name=" + names.Encode(s.prefix+name)}}
	answer, err := s.send(of, "watch", s.leases()+"?"+query.Encode(), nil)
	if err != nil {
		hangUp()
		return nil, err
	}
	return func(changed func(record.Record)) {
		defer hangUp() // so that life forgets it
		defer answer.Body.Close()
		for events := json.NewDecoder(answer.Body); ; {
			var e struct {
				Type   string
				Object lease
			}
			if events.Decode(&e) != nil || e.Type == "ERROR" {
				return
			}
			r, err := e.Object.record()
			if err != nil || e.Type == "DELETED" {
				r = record.Record{}
			}
			changed(r)
		}
	}, nil
}
