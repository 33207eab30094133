package fencehttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/distlock/distlock/fence"
)

// Options of a handler. The zero value is the default.
type Options struct {
	// Resource names what a request is about; one name is guarded by one lock. Default:
	// the URL's path. A request for which it returns "" is refused with 400.
	Resource func(*http.Request) string

	// Optional lets requests without the header through, unchecked: for a while, until all
	// clients send it.
	Optional bool

	// StaleStatus is the answer to a stale fence: http.StatusPreconditionFailed, the
	// default, or http.StatusConflict.
	StaleStatus int
}

type handler struct {
	Options
	next  http.Handler
	guard fence.Guard
}

// New puts a check before a handler. A request goes on to it if guard lets its fence in,
// and is inside until the handler has returned; it waits while others are inside under a
// smaller fence. With guard nil the header is only read: the handler gives Fence to what
// checks it, and its error to Refuse. o may be nil.
//
// ErrInvalid: no handler, or another StaleStatus.
func New(next http.Handler, guard fence.Guard, o *Options) (http.Handler, error) {
	h := &handler{next: next, guard: guard}
	if o != nil {
		h.Options = *o
	}
	if next == nil {
		return nil, fmt.Errorf("fencehttp: %w handler: it is nil", fence.ErrInvalid)
	}
	if h.Resource == nil {
		h.Resource = func(r *http.Request) string { return r.URL.Path }
	}
	switch h.StaleStatus {
	case 0:
		h.StaleStatus = http.StatusPreconditionFailed
	case http.StatusPreconditionFailed, http.StatusConflict:
	default:
		return nil, fmt.Errorf("fencehttp: %w StaleStatus %d: want 412 or 409", fence.ErrInvalid, h.StaleStatus)
	}
	return h, nil
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Add("Vary", Header)
	f, err := Parse(r.Header)
	if h.Optional && errors.Is(err, errMissing) {
		h.next.ServeHTTP(w, r)
		return
	}
	leave := func() {}
	if err == nil {
		leave, err = h.enter(r, f)
	}
	if err != nil {
		refuse(w, h.StaleStatus, err)
		return
	}
	defer leave()
	ctx := context.WithValue(r.Context(), carriedKey{}, carried{f, h.StaleStatus})
	h.next.ServeHTTP(w, r.WithContext(ctx))
}

func (h *handler) enter(r *http.Request, f uint64) (leave func(), err error) {
	resource := h.Resource(r)
	if err := fence.Valid(resource, f); err != nil {
		return nil, err
	}
	if h.guard == nil {
		return func() {}, nil
	}
	return h.guard.Enter(r.Context(), resource, f)
}

// carried is what a request's context has of it.
type carried struct {
	fence       uint64
	staleStatus int
}

type carriedKey struct{}

// Fence is the fence that a request was let in with, given the request's context; 0 if it
// came without one, or not through New's handler. Transport.Fence may be this function, for
// a server that asks another one in the holder's name.
func Fence(ctx context.Context) uint64 {
	c, _ := ctx.Value(carriedKey{}).(carried)
	return c.fence
}

// Refuse answers a request whose fence was found to be stale by what its handler asked: err
// matches fence.ErrStale. It reports whether it did, and leaves other errors to you. Call
// it before anything is written.
func Refuse(w http.ResponseWriter, r *http.Request, err error) bool {
	if !errors.Is(err, fence.ErrStale) {
		return false
	}
	c, _ := r.Context().Value(carriedKey{}).(carried)
	refuse(w, cmp.Or(c.staleStatus, http.StatusPreconditionFailed), err)
	return true
}

// refuse tells no fence, and nothing of the guard.
func refuse(w http.ResponseWriter, staleStatus int, err error) {
	switch {
	case errors.Is(err, fence.ErrStale):
		w.Header().Set(Header, stale)
		http.Error(w, "stale fence: another has held the lock since; take it anew and begin with reading", staleStatus)
	case errors.Is(err, errMissing):
		http.Error(w, err.Error(), http.StatusPreconditionRequired)
	case errors.Is(err, fence.ErrInvalid):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		http.Error(w, "the fence could not be checked", http.StatusServiceUnavailable)
	}
}
