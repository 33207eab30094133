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

	// Log gets a line for each request, without owners and tokens; nil: none.
	Log *slog.Logger

	// Version is the program's, for GET /v1.
	Version string

	// MaxHolds and MaxStreams limit how many holds an identity may have that were granted here, and how
	// many requests it may have open that wait; 0 means 10000 and 1000.
	MaxHolds, MaxStreams int
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

	lists       chan struct{} // has an element for each list that runs
	ownerCalls  ownerCalls
	subscribers subscribers
	quota       quota
	metrics     *metrics
	inspection  inspection
	seen        *seen
	poller      poller
	page        *page
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
