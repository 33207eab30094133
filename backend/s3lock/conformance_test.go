package s3lock

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/oddnames"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestConformance(t *testing.T) { conform(t, newFake().serve(t)) }

func TestLongConformanceOfARealServer(t *testing.T) {
	conform(t, urlOf(testserver.SharedS3(t).Endpoint()))
}

// A server whose reads are not atomic loses no lock by it.
func TestLongConformanceOfAServerThatTearsReads(t *testing.T) {
	conform(t, urlOf(testserver.S3(t, testserver.S3Options{Sidecar: true}).Endpoint()))
}

func conform(t *testing.T, url string) {
	drivertest.Run(t, cutting(url))
}

func TestOddNames(t *testing.T) {
	t.Parallel()
	oddnames.Try(t, connect(t, newFake().serve(t)), nil)
}

func TestLongOddNamesOnARealServer(t *testing.T) {
	t.Parallel()
	oddnames.Try(t, connect(t, urlOf(testserver.SharedS3(t).Endpoint())), nil)
}

// cuttable is a network that can be cut.
type cuttable struct {
	*http.Transport
	cut, unanswered atomic.Bool
}

func (c *cuttable) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.cut.Load() {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	answer, err := c.Transport.RoundTrip(r)
	if err == nil && c.unanswered.Load() {
		answer.Body.Close()
		return nil, errors.New("connection reset")
	}
	return answer, err
}

// cutting opens backends that can be cut off from the store.
func cutting(url string) drivertest.Harness {
	var networks sync.Map
	return drivertest.Harness{
		Holds: 40, // each renewal is a request
		Open: func(ctx context.Context) (driver.Backend, error) {
			u, err := driver.ParseURL(url)
			if err != nil {
				return nil, err
			}
			s, err := openStore(ctx, u)
			if err != nil {
				return nil, err
			}
			network := &cuttable{Transport: s.http.Transport.(*http.Transport)}
			s.http.Transport = network
			b := s.backend()
			networks.Store(b, network)
			return b, nil
		},
		Cut: func(b driver.Backend) (restore func()) {
			network, _ := networks.Load(b)
			network.(*cuttable).cut.Store(true)
			return func() { network.(*cuttable).cut.Store(false) }
		},
		LoseAnswers: func(b driver.Backend) (restore func()) {
			network, _ := networks.Load(b)
			network.(*cuttable).unanswered.Store(true)
			return func() { network.(*cuttable).unanswered.Store(false) }
		},
	}
}

// A right that is withdrawn, and a login that no longer counts, are no answers.
func TestRefused(t *testing.T) {
	for _, e := range []*storeError{
		{status: http.StatusForbidden, code: "AccessDenied", message: "Access Denied"},
		{status: http.StatusBadRequest, code: "ExpiredToken", message: "The provided token has expired."},
	} {
		t.Run(e.code, func(t *testing.T) {
			drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
				f := newFake()
				h := cutting(f.serve(t))
				h.Withdraw = func() (restore func()) {
					f.set(func() { f.instead = func(*http.Request) *storeError { return e } })
					return func() { f.set(func() { f.instead = nil }) }
				}
				return h
			})
		})
	}
}
