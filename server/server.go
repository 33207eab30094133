// Package server gives programs in every language the locks of one backend, over HTTP and JSON.
//
//	b, err := driver.Open(ctx, "redis://localhost:6379")
//	s, err := server.New(b, server.Options{})
//	err = http.ListenAndServe("127.0.0.1:7077", s)
//
// The command distlock serve does this, with TLS, tokens, limits and an orderly end. Package httplock is the
// client for Go. The folder clients has others, and openapi.json describes the calls for the rest.
//
// # What the server promises
//
// A server has no state that a lock depends on: any number of servers may stand before one backend, and a
// server that is killed loses nothing. The client makes the Owner, which is the idempotency key and the proof
// of holding, as it is between distlock and a backend (see package driver).
//
// Every positive answer rests on a call of the backend that began after the request had arrived. So a client
// that counts the TTL from before it sent the request trusts a hold for no longer than it lives. Nothing that
// the server pushes prolongs a hold. The server never repeats an acquire for a client that has gone, and never
// releases what it was granted for an Owner that the client made.
//
// This needs a backend whose holds outlive its connection, and can be renewed through any other: see
// driver.Caps.
//
// # The page
//
// The server's own page shows people what is held and waited for, live, and lets them ask for locks and break
// them, as far as their token allows.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/server/internal/page"
	"github.com/distlock/distlock/server/internal/seen"
)

// Options configure a Server. The zero value allows everything to every client: it is for a listener that only
// its own user can reach.
type Options struct {
	// Access decides who may do what; nil: every client may do everything.
	Access *Access

	// Hosts are the host names under which the server may be called beside addresses, without ports; empty: any.
	// A server that asks for no tokens or certificates needs them, or a page in the user's browser could reach
	// it by a host name of its own that it lets point there.
	Hosts []string

	// Log gets a line for each request, without owners and tokens: at slog.LevelWarn for one that is lost, denied, without an
	// outcome or slow, else at slog.LevelDebug; nil: none.
	Log *slog.Logger

	// Version is the program's, for GET /v1.
	Version string

	// MaxHolds and MaxStreams limit how many holds an identity may have that were granted here, and how
	// many requests it may have open that wait; 0 means 10000 and 1000.
	MaxHolds, MaxStreams int

	// MaxConnections is how many connections HTTP may have at once, all of which need a file of the process: fewer than
	// the files that it may have open, since its backend needs some too. Requests that wait get three quarters of
	// them. 0 means any number.
	MaxConnections int
}

// bodyTime is how long a client may take to send the body of its request.
const bodyTime = 10 * time.Second

// Server is the http.Handler of a backend. It is safe for concurrent use.
type Server struct {
	backend driver.Backend
	caps    driver.Caps
	o       Options
	mux     *http.ServeMux
	name    string // of the backend, as in the header
	origin  *http.CrossOriginProtection

	bodyTime time.Duration

	drained context.Context // ends when the server drains
	drain   context.CancelFunc
	begins  sync.Mutex // of a stream, or of Drain, which then waits for all streams
	streams wait.Group

	ownerCalls  ownerCalls
	released    releasedOwners
	watched     sync.Map // by owner: the exchange that is its stream of signals
	subscribers subscribers
	quota       quota
	connections connections
	workers     workers
	limit       callLimit
	metrics     *metrics
	inspection  inspection
	seen        *seen.Log
	page        *page.Page
}

// errDraining sends the client to the next server.
var errDraining = fmt.Errorf("%w: the server shuts down", driver.ErrUnsent)

// begin counts a stream, unless the server drains.
func (s *Server) begin() error {
	s.begins.Lock()
	defer s.begins.Unlock()
	if s.drained.Err() != nil {
		return errDraining
	}
	s.streams.Add(1)
	return nil
}

// HTTP returns a http.Server whose handler is s, with the bounds of time, size and connections that a server needs.
func (s *Server) HTTP() *http.Server {
	return &http.Server{
		Handler: s, ReadHeaderTimeout: strangerTime, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ConnContext: s.connections.accept, ConnState: s.connections.changed,
	}
}
