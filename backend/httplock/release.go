package httplock

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// lateAttempts knows at which servers attempts without an answer may yet arrive. It is safe for concurrent use.
type lateAttempts struct {
	mu sync.Mutex
	at map[string]arrivals // by Owner
}

// arrivals are until when an attempt may arrive at a server.
type arrivals map[*endpoint]time.Time

// lateTime is how much longer than its TTL an attempt may take to arrive, and how long one release of it may take.
const lateTime = 10 * time.Second

// note notes the outcome of an attempt.
func (l *lateAttempts) note(h driver.Hold, err error) {
	var t tried
	if isFact(err) || errors.Is(err, driver.ErrUnsent) || !errors.As(err, &t) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	server := t[len(t)-1].server
	if l.at[h.Owner] == nil {
		l.at[h.Owner] = arrivals{}
	}
	until := time.Now().Add(h.TTL + lateTime)
	l.at[h.Owner][server] = until
	time.AfterFunc(h.TTL+lateTime, func() {
		if l.of(h.Owner)[server] == until { // or there was another attempt
			l.forget(h.Owner, server)
		}
	})
}

// forget notes that at a server no attempt of an Owner takes anything any more.
func (l *lateAttempts) forget(owner string, server *endpoint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.at[owner], server)
	if len(l.at[owner]) == 0 {
		delete(l.at, owner)
	}
}

// of returns the servers at which attempts of an Owner may yet arrive.
func (l *lateAttempts) of(owner string) arrivals {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.at[owner])
}

// Release ends a hold or a place in the queue. It is sent once: a second answer of ErrLost would hide the
// success of the first. It is also sent to where attempts of the Owner may yet arrive: a server refuses those that come after it.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.checkHold(h); err != nil {
		return err
	}
	m := httpwire.Hold{Name: h.Name, Owner: h.Owner, Mode: h.Mode}
	q := request{method: http.MethodPost, path: "/v1/release", body: httpwire.WriteHold(&m), status: http.StatusNoContent}
	var err error
	if late := b.late.of(h.Owner); late == nil {
		err = b.caller.call(ctx, "release", q, nil, nil)
	} else {
		late[b.client.inUse()] = time.Time{}
		err = b.releaseLate(ctx, h.Owner, q, late)
	}
	b.worked(err)
	if err == nil || errors.Is(err, driver.ErrLost) {
		b.news.forget(h.Owner)
	}
	if err != nil {
		return fail("release", h.Name, err)
	}
	return nil
}

// releaseLate releases an Owner at several servers, side by side, since some may be silent. That it had nothing is a fact if none of
// these releases may have ended it, and no attempt may arrive any more.
func (b *Backend) releaseLate(ctx context.Context, owner string, q request, at arrivals) error {
	answers := make(chan error, len(at))
	for s := range at {
		if !b.goTask(func() { answers <- b.releaseAt(s, owner, q) }) {
			return driver.ErrClosed
		}
	}
	var lost, unknown error
	for range at {
		var err error
		select {
		case err = <-answers:
		case <-ctx.Done():
			err = ctx.Err()
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, driver.ErrLost):
			lost = err
		case unknown == nil || errors.Is(unknown, driver.ErrUnsent):
			unknown = err
		}
	}
	if unknown == nil || lost != nil && errors.Is(unknown, driver.ErrUnsent) && b.late.of(owner) == nil {
		return lost
	}
	return unknown
}

// releaseAt releases an Owner at one server, also if the caller has gone by then.
func (b *Backend) releaseAt(s *endpoint, owner string, q request) error {
	ctx, cancel := context.WithTimeout(b.life, lateTime)
	defer cancel()
	resp, err := b.client.try(ctx, s, q)
	if err == nil {
		resp.Body.Close()
	} else if !isFact(err) {
		b.client.leave(ctx, s)
	}
	if err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, syscall.ECONNREFUSED) { // its process has ended, and the attempt with it
		b.late.forget(owner, s)
	}
	if err != nil {
		err = tried{{s, err}}
	}
	return err
}
