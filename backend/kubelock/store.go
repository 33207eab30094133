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
	if errors.Is(err, errAbsent) {
		return record.Record{}, nil
	}
	if err != nil {
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

// armTime bounds how long the server may take to open a stream again.
const armTime = 10 * time.Second

// Watch signals each change of the Lease: a renewal too, so that a waiter sees the last one when it is made. A stream that ends, as of a
// server that stops or has compacted what came next, is opened again, and a signal follows: it may have missed something.
func (s *store) Watch(ctx context.Context, name string) (driver.Watch, error) {
	life, end := context.WithCancel(s.life)
	ready := wait.NewSignal()
	stream, err := s.stream(ctx, life, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.life.Err() != nil {
		end()
		return driver.Watch{}, errors.Join(err, s.life.Err())
	}
	s.tasks.Go(func() {
		for try := 0; life.Err() == nil; try++ {
			if began := time.Now(); err == nil {
				forward(stream, ready)
				if time.Since(began) > armTime { // one that ends soon may end as soon again
					try = 0
				}
			}
			wait.Sleep(life, wait.Backoff(try, 10*time.Millisecond, armTime/2))
			arming, cancel := context.WithTimeout(life, armTime)
			stream, err = s.stream(arming, life, name)
			cancel()
			ready.Notify()
		}
	})
	return driver.Watch{Ready: ready, Close: end}, nil
}

// stream opens a stream of the changes, which begins with the Lease as it is. It ends with life; ctx bounds the opening only.
func (s *store) stream(ctx, life context.Context, name string) (io.ReadCloser, error) {
	of, hangUp := context.WithCancel(life)
	defer context.AfterFunc(ctx, hangUp)()
	query := url.Values{"watch": {"1"}, "fieldSelector": {"metadata.name=" + leaseName(s.prefix+name)}}
	answer, err := s.send(of, "watch", s.leases("")+"?"+query.Encode(), nil)
	if err != nil {
		hangUp()
		return nil, err
	}
	return stream{answer.Body, hangUp}, nil
}

type stream struct {
	io.ReadCloser
	hangUp context.CancelFunc
}

func (s stream) Close() error {
	s.hangUp() // so that life forgets it
	return s.ReadCloser.Close()
}

// forward signals until the stream ends.
func forward(stream io.ReadCloser, ready wait.Signal) {
	defer stream.Close()
	for events := json.NewDecoder(stream); ; {
		var e struct {
			Type   string
			Object lease
		}
		if events.Decode(&e) != nil || e.Type == "ERROR" {
			return
		}
		if e.Type != "ADDED" || e.Object.Spec.HolderIdentity == "" {
			ready.Notify()
		}
	}
}
