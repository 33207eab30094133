// Package fencehttp carries fencing tokens in the header Distlock-Fence, from the holder of a lock to
// the server that keeps the protected data, and checks them there.
//
// The client sends the fence of its context's lease with every request, including reads:
//
//	client := &http.Client{Transport: &fencehttp.Transport{Fence: distlock.Fence}}
//
// The server accepts a request if no greater fence was presented for its resource before:
//
//	handler, err := fencehttp.New(files, new(fence.Memory), nil)
//
// That suits data in the server's memory. Data in a database needs a guard there, since a restarted
// server, or another instance, doesn't know the fences. Then give New no guard: it only reads the
// header, and the handler passes the number on:
//
//	err := guard.Do(ctx, db, "stock:7", fencehttp.Fence(r.Context()), change) // fencesql
//	if fencehttp.Refuse(w, r, err) {
//		return
//	}
//
// Fences are trusted: a client that may send any number can block a resource for all others. So
// authenticate first. Put handlers for CORS preflights, which have no fence, before New's handler, and
// http.TimeoutHandler too: inside, it would report a request as finished that still runs.
//
// # Answers
//
//	412 Precondition Failed    the fence is stale; Options.StaleStatus may say 409
//	428 Precondition Required  there is no fence, and Options.Optional is not set
//	400 Bad Request            the header is not one decimal number above 0, or occurs twice
//
// In RFC 9110 a 412 says that "one or more conditions given in the request header fields evaluated to
// false". The fence is such a condition: that no greater fence was presented. A 409 is for conflicts
// after which the user may submit the request again, which a stale holder must not. A 428 (RFC 6585)
// is for servers that require a condition, against lost updates.
//
// No answer contains a fence. An answer to a stale fence has the header "Distlock-Fence: stale", by
// which Stale distinguishes it from the 412 of an If-Match.
//
// A cache must not answer for the server, since the guard would not see the fence: answers have
// "Cache-Control: no-store", unless the handler sets it, and "Vary: Distlock-Fence".
package fencehttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/distlock/distlock/fence"
)

// Header is the request header with the fence: one decimal number from 1 to 1<<64-1, without sign
// or leading zeros. In an answer it is "stale" or absent.
const Header = "Distlock-Fence"

const stale = "stale"

var errMissing = fmt.Errorf("%w request: want the header %s with the fence of the lock", fence.ErrInvalid, Header)

// Set sets the fence in a request's header. For 0 it deletes the header.
func Set(h http.Header, f uint64) {
	h.Del(Header)
	if f > 0 {
		h.Set(Header, strconv.FormatUint(f, 10))
	}
}

// Parse reads the fence from a request's header. It returns ErrInvalid if the header is missing,
// occurs twice, or isn't a number as described at Header.
func Parse(h http.Header) (uint64, error) {
	values := h.Values(Header)
	switch len(values) {
	case 0:
		return 0, errMissing
	case 1:
	default:
		return 0, fmt.Errorf("%w header %s: it occurs %d times", fence.ErrInvalid, Header, len(values))
	}
	f, err := strconv.ParseUint(values[0], 10, 64)
	if err != nil || strconv.FormatUint(f, 10) != values[0] || f == 0 {
		return 0, fmt.Errorf("%w header %s: want one decimal number from 1 to 18446744073709551615", fence.ErrInvalid, Header)
	}
	return f, nil
}

// Options configures a handler. The zero value is the default.
type Options struct {
	// Resource returns the resource of a request; each belongs to one lock. Default: the URL's
	// path. A request for which it returns "" is refused with 400.
	Resource func(*http.Request) string

	// Optional accepts requests without the header, unchecked, until all clients send it.
	Optional bool

	// StaleStatus is the status for a stale fence: http.StatusPreconditionFailed, the default, or
	// http.StatusConflict.
	StaleStatus int
}

type handler struct {
	Options
	next  http.Handler
	guard fence.Guard
}

// New wraps a handler with a check. A request reaches it once guard has accepted the fence, and is
// inside until the handler returns. It waits while requests are inside under a smaller fence. With
// a nil guard the header is only read: the handler passes Fence to a guard of its own, and that
// guard's error to Refuse. o may be nil.
//
// New returns ErrInvalid for a nil handler and for another StaleStatus.
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

// carried is the value that New's handler adds to a request's context.
type carried struct {
	fence       uint64
	staleStatus int
}

type carriedKey struct{}

// Fence returns the fence of a request, from its context. It is 0 if the request had none or did
// not pass New's handler. Transport.Fence may be this function, for a server that calls another one
// on the holder's behalf.
func Fence(ctx context.Context) uint64 {
	c, _ := ctx.Value(carriedKey{}).(carried)
	return c.fence
}

// Refuse answers a request if err matches fence.ErrStale, as the error of a guard in its handler.
// It reports whether it did; other errors are left to the caller. Call it before anything is
// written.
func Refuse(w http.ResponseWriter, r *http.Request, err error) bool {
	if !errors.Is(err, fence.ErrStale) {
		return false
	}
	c, _ := r.Context().Value(carriedKey{}).(carried)
	refuse(w, cmp.Or(c.staleStatus, http.StatusPreconditionFailed), err)
	return true
}

// refuse reveals no fence, and nothing of the guard.
func refuse(w http.ResponseWriter, staleStatus int, err error) {
	switch {
	case errors.Is(err, fence.ErrStale):
		w.Header().Set(Header, stale)
		http.Error(w, "stale fence: another client has held the lock since; acquire it again and start with reading", staleStatus)
	case errors.Is(err, errMissing):
		http.Error(w, err.Error(), http.StatusPreconditionRequired)
	case errors.Is(err, fence.ErrInvalid):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		http.Error(w, "the fence could not be checked", http.StatusServiceUnavailable)
	}
}

// Transport adds the fence of each request's context. It is safe for concurrent use if Base is.
type Transport struct {
	// Fence finds the fence in a request's context: distlock.Fence for programs with one lock. For
	// several locks use one Transport each, with distlock.FenceOf and the lock's name. If it
	// returns 0 no fence is sent.
	Fence func(context.Context) uint64

	// Base sends the request; nil means http.DefaultTransport.
	Base http.RoundTripper
}

// RoundTrip implements http.RoundTripper. It keeps a header that the request already has.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	if t.Fence == nil || len(r.Header.Values(Header)) > 0 {
		return base.RoundTrip(r)
	}
	r = r.Clone(r.Context()) // a RoundTripper must not change its request
	if r.Header == nil {
		r.Header = http.Header{}
	}
	Set(r.Header, t.Fence(r.Context()))
	return base.RoundTrip(r)
}

// Stale returns a *fence.StaleError if the answer says that the request's fence is stale, and
// otherwise nil. Its Resource is the URL's path, since the answer doesn't contain the resource.
func Stale(response *http.Response) error {
	if response.Header.Get(Header) != stale {
		return nil
	}
	e := &fence.StaleError{}
	if r := response.Request; r != nil {
		e.Resource = r.URL.Path
		e.Fence, _ = strconv.ParseUint(r.Header.Get(Header), 10, 64)
	}
	return e
}
