package fencehttp

import (
	"context"
	"net/http"
	"strconv"

	"github.com/distlock/distlock/fence"
)

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
