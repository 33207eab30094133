package connlock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Close ends the links, and with them all holds. Work that is under way in Commit ends with
// an error. A connection that can't be ended is not waited for longer than closeTime.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	b.stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.endAll()
	}()
	t := time.NewTimer(closeTime)
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-t.C:
		return fmt.Errorf("%s: close: a connection has not ended after %v", b.Package, closeTime)
	}
}

// endAll waits for what is under way, and ends the links.
func (b *Backend) endAll() {
	b.tasks.Wait()
	b.mu.Lock()
	links := slices.Collect(maps.Keys(b.conns))
	b.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range links {
		wg.Go(s.shutDown)
	}
	wg.Wait()
}

// shutDown closes a link with its backend. The caller's work may have it, in a statement that has no
// end: that is ended through another connection, if there is one, and otherwise the link is closed
// when the work is done.
func (s *lockConn) shutDown() {
	select {
	case <-s.sem:
	default:
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
		defer cancel()
		s.b.Dialect.Kill(ctx, s.conn.ID())
		select {
		case <-s.sem:
		case <-ctx.Done():
			return
		}
	}
	defer func() { s.sem <- struct{}{} }()
	if !s.isDead() {
		s.conn.Close()
	}
}
