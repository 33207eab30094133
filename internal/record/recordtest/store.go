// Package recordtest has what tests of internal/record and of its stores share: a store in memory, faults that can be put
// before any store, and a storm of clients.
package recordtest

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/record"
)

// Memory is a record.Store in memory, which any number of clients share.
type Memory struct {
	Stamps bool // the store numbers its writes

	// Age returns what the store says of a record that is so old; nil: it says nothing.
	Age func(age time.Duration) time.Duration

	mu      sync.Mutex
	writes  uint64
	records map[string]record.Record
	written map[string]time.Time
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{records: map[string]record.Record{}, written: map[string]time.Time{}}
}

// Read returns the record of name.
func (m *Memory) Read(ctx context.Context, name string) (record.Record, error) {
	if err := ctx.Err(); err != nil {
		return record.Record{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[name]
	if m.Age != nil {
		r.Age = max(0, m.Age(time.Since(m.written[name])))
	}
	return r, nil
}

// Write replaces the record of name if it has r.Version. It takes effect also if ctx has ended: the caller is the network.
func (m *Memory) Write(_ context.Context, name string, r record.Record) (record.Written, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.records[name].Version; have != r.Version {
		return record.Written{}, fmt.Errorf("memory: %w", record.ErrConflict)
	}
	m.writes++
	r.Version, r.Stamp = strconv.FormatUint(m.writes, 10), 0
	if m.Stamps {
		r.Stamp = m.writes
	}
	r.Meta = maps.Clone(r.Meta)
	m.records[name], m.written[name] = r, time.Now()
	return record.Written{Version: r.Version, Stamp: r.Stamp}, nil
}

// List calls yield for each record.
func (m *Memory) List(ctx context.Context, prefix string, yield func(name string, r record.Record) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	all := maps.Clone(m.records)
	m.mu.Unlock()
	for name, r := range all {
		if strings.HasPrefix(name, prefix) && !yield(name, r) {
			return nil
		}
	}
	return nil
}

// Close does nothing.
func (m *Memory) Close() error { return nil }
