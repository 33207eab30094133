// Package served tests package httplock and package server together: two servers before one store, which are
// killed, restarted, drained and exchanged.
package served

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	_ "github.com/distlock/distlock/backend/all"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/server"
)

var (
	signalled  = locktest.Signalled
	eventually = locktest.Eventually
)

func TestMain(m *testing.M) {
	os.Exit(testserver.Run(m))
}

// process is a server at an address that it keeps when it is restarted.
type process struct {
	t       testing.TB
	addr    string
	connect func() driver.Backend

	mu      sync.Mutex
	backend driver.Backend
	server  *server.Server
	http    *http.Server
}

// start starts a server of a connection, which ends with the test.
func start(t testing.TB, connect func() driver.Backend) *process {
	t.Helper()
	p := &process{t: t, addr: testserver.FreeAddr(t), connect: connect}
	p.restart()
	t.Cleanup(p.kill)
	return p
}

// patient is what URLs of servers end in: a busy machine needs longer for Open than its default.
const patient = "/?timeout=2m"

func (p *process) url() string { return "http://" + p.addr + patient }

// restart starts the server anew, with a new connection to the store.
func (p *process) restart() {
	p.t.Helper()
	err := testserver.AwaitRefusal(p.addr)
	var l net.Listener
	if err == nil {
		l, err = net.Listen("tcp", p.addr)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backend = p.connect()
	p.server = must.Get(server.New(p.backend, server.Options{}))(p.t)
	p.http = &http.Server{Handler: p.server}
	go p.http.Serve(l)
}

// kill closes all that the server has open, at once.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.http.Close()
	p.backend.Close()
}

// drain lets the server do what it has begun.
func (p *process) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	expect.OK(p.t, p.server.Drain(p.t.Context()))
}

func open(t testing.TB, rawURL string) driver.Backend {
	t.Helper()
	b := must.Get(driver.Open(context.Background(), rawURL))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

func request(name string) driver.Request {
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Minute},
		Fences: 1,
	}
}

func mustAcquire(t testing.TB, b driver.Backend, r driver.Request) {
	t.Helper()
	must.OK(t, expect.Err(b.Acquire(t.Context(), r)), "acquire", r.Name)
}
