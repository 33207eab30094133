package kubelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	life  context.Context // ends with Close, which holds mu then
	stop  context.CancelFunc
	mu    sync.Mutex
	tasks wait.Group
}

// Read gets the Lease.
func (s *store) Read(ctx context.Context, name string) (record.Record, error) {
	l := &lease{}
	err := s.call(ctx, "get", s.leases(leaseName(s.prefix+name)), nil, l)
	switch {
	case errors.Is(err, errAbsent):
		return record.Record{}, nil
	case err != nil:
		return record.Record{}, err
	}
	return l.record()
}

// Write creates or updates the Lease.
func (s *store) Write(ctx context.Context, name string, r record.Record) (record.Written, error) {
	l, err := written(s.prefix+name, r, s.now())
	if err != nil {
		return record.Written{}, err
	}
	verb, path := "create", s.leases("")
	if r.Version != "" {
		verb, path = "update", s.leases(l.Metadata.Name)
	}
	answer := &lease{}
	if err := s.call(ctx, verb, path, l, answer); err != nil {
		return record.Written{}, err
	}
	w, err := answer.record()
	return record.Written{Version: w.Version, Stamp: w.Stamp, Rest: answer}, err
}

// List lists the Leases.
func (s *store) List(ctx context.Context, prefix string, yield func(name string, r record.Record) bool) error {
	var all struct{ Items []*lease }
	if err := s.call(ctx, "list", s.leases(""), nil, &all); err != nil {
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

// Watch signals each change of the Lease: a renewal too, so that a waiter sees the last one when it is made.
func (s *store) Watch(ctx context.Context, name string) (driver.Watch, error) {
	w := &watch{store: s, name: leaseName(s.prefix + name), ready: wait.NewSignal()}
	life, end := context.WithCancel(s.life)
	w.life = life
	err := w.arm(ctx)
	if err == nil && !s.goTask(w.run) {
		err = driver.ErrClosed
	}
	if err != nil {
		end()
		return driver.Watch{}, err
	}
	return driver.Watch{Ready: w.ready, Close: end}, nil
}

// goTask runs f in the background, unless the store is closed.
func (s *store) goTask(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return false
	}
	s.tasks.Go(f)
	return true
}

// watch is one armed wait.
type watch struct {
	store *store
	name  string
	life  context.Context
	ready wait.Signal

	events io.ReadCloser // nil: it is not armed
	hangUp context.CancelFunc
}

// armTime bounds how long the server may take to open a stream again.
const armTime = 10 * time.Second

// arm opens a stream of the changes, which begins with the Lease as it is. ctx bounds that, and not the stream.
func (w *watch) arm(ctx context.Context) error {
	stream, hangUp := context.WithCancel(w.life)
	defer context.AfterFunc(ctx, hangUp)()
	query := url.Values{"watch": {"1"}, "fieldSelector": {"metadata.name=" + w.name}}
	answer, err := w.store.send(stream, "watch", w.store.leases(""), query, nil)
	if err != nil {
		hangUp()
		return err
	}
	w.events, w.hangUp = answer.Body, hangUp
	return nil
}

// run signals until the watch is closed. A stream that ends, as of a server that stops or has compacted what came next, is
// opened again, and a signal follows: it may have missed something.
func (w *watch) run() {
	for try := 0; w.life.Err() == nil; try++ {
		if w.events != nil {
			w.forward()
			try = 0
		}
		if wait.Sleep(w.life, wait.Backoff(try, 10*time.Millisecond, 5*time.Second)) == nil {
			ctx, cancel := context.WithTimeout(w.life, armTime)
			w.arm(ctx)
			cancel()
			w.ready.Notify()
		}
	}
}

// forward signals until the stream ends.
func (w *watch) forward() {
	defer w.hangUp()
	defer w.events.Close()
	events := json.NewDecoder(w.events)
	w.events = nil
	for {
		var e struct {
			Type   string
			Object lease
		}
		if events.Decode(&e) != nil || e.Type == "ERROR" {
			return
		}
		if e.Type != "ADDED" || e.Object.Spec.HolderIdentity == "" {
			w.ready.Notify()
		}
	}
}
