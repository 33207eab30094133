//go:build linux

package chaos

import (
	"cmp"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// scene has the servers and workers that faults act on. A deployment fills in the fields that its faults need.
type scene struct {
	*testing.T
	url          string            // where workers find the backend
	client       string            // config.Client
	direct       string            // a URL that no fault of the network reaches; empty: url
	server       server            // the only one
	etcd         server            // that an API server keeps all in
	text         string            // in requests that concern the hot lock; empty: its name
	proxy        *faultproxy.Proxy // between the workers and the server
	do           func(command ...string)
	clock, disk  *preloaded                     // of the server
	awaitRefusal func()                         // returns once the server refuses a write
	replicas     *testserver.RedisSentinelGroup // in place of the server
	cluster      *testserver.RedisClusterGroup
	fronts       proxies  // of replicas or cluster
	members      []server // of a cluster
	leader       func() server
	isolate      func(server) (heal func())
	reach        func(process int) (url string) // each worker has another; nil: all have url
	ways         map[int][]*faultproxy.Proxy    // from each worker to the members
	holder       int                            // the worker that began the last long hold
	rest         func() []string                // what else is left of locks
	ttl          time.Duration
	crew         *crew
	register     *register
}

// server is a process that can fail; see testserver.Process.
type server interface {
	Addr() string
	Kill()
	Start()
	Pause()
	Resume()
}

// fault is a kind of failure. begin makes it happen and returns a function that ends it. It is called when a worker has just
// begun a long hold.
type fault struct {
	what  string
	lasts float64 // TTLs at most, and half of that at least
	begin func(s *scene) (end func())
}

func (f *fault) strike(s *scene) {
	end := f.begin(s)
	most := time.Duration(f.lasts * float64(s.ttl))
	time.Sleep(most/2 + rand.N(most/2+1))
	end()
}

func nothing() {}

// awaitError returns once a write fails.
func (s *scene) awaitError(write func() error) {
	for end := time.Now().Add(2 * time.Minute); write() == nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.Error("every write succeeds")
			return
		}
	}
}

var (
	killClient = fault{"client killed", 0.5, func(s *scene) func() {
		s.crew.kill()
		return s.crew.start
	}}
	pauseClient = fault{"client paused for longer than the TTL", 1.5, beginPause}
	killServer  = fault{"server killed and restarted", 1, func(s *scene) func() {
		s.server.Kill()
		return s.server.Start
	}}
	// A server that is back at once finds holders that trust their leases.
	bounceServer = fault{"server killed and restarted at once", 0, killServer.begin}
	pauseServer  = fault{"server paused", 1.5, func(s *scene) func() {
		s.server.Pause()
		return s.server.Resume
	}}
	cutConnections = fault{"connections cut", 1, repeat(50*time.Millisecond, func(s *scene) { s.proxy.Cut() })}
	blackHole      = fault{"half-open connections (black hole)", 1.5, func(s *scene) func() {
		s.proxy.Silence()
		return s.proxy.Pass
	}}
	delay = fault{"requests delayed", 1, func(s *scene) func() {
		s.proxy.Delay(s.ttl / 10)
		return func() { s.proxy.Delay(0) }
	}}
	loseRequests = fault{"requests lost", 1, lose((*faultproxy.Proxy).LoseRequest)}
	loseAnswers  = fault{"answers lost", 1, lose((*faultproxy.Proxy).LoseReply)}
	storm        = fault{"connection storm", 1, repeat(time.Millisecond, connect)}
	clockAhead   = fault{"clock jumps forward", 0.5, jump(time.Minute)}
	clockBehind  = fault{"clock jumps back", 0.5, jump(-2 * time.Second)}
	slowDisk     = fault{"each flush to disk takes 50 ms", 1.5, func(s *scene) func() {
		s.disk.set(s.T, (50 * time.Millisecond).Microseconds())
		return func() { s.disk.set(s.T, 0) }
	}}
	fullDisk = fault{"disk full", 0.5, func(s *scene) func() {
		s.disk.set(s.T, -1)
		s.awaitRefusal()
		return func() { s.disk.set(s.T, 0) }
	}}
	// A server that ends when it can't write is started again once there is room.
	fullDiskRestart = fault{"disk full; restarted when there is room", 0.5, func(s *scene) func() {
		end := fullDisk.begin(s)
		return func() {
			end()
			s.server.Kill()
			s.server.Start()
		}
	}}
)

// beginPause stops a worker between its last look at its lease and its write, until another one has written.
func beginPause(s *scene) func() {
	stopped := make(chan Access, 1)
	s.register.atLook(func(a Access) {
		if err := testserver.Freeze(a.PID); err != nil {
			s.Error(err)
		}
		stopped <- a
	})
	select {
	case a := <-stopped:
		return func() {
			for end := time.Now().Add(time.Minute); !s.register.moved(a) && time.Now().Before(end); {
				time.Sleep(5 * time.Millisecond)
			}
			syscall.Kill(a.PID, syscall.SIGCONT)
		}
	case <-time.After(time.Minute):
		s.register.atLook(nil)
		return nothing
	}
}

// repeat does something again and again.
func repeat(every time.Duration, f func(*scene)) func(*scene) func() {
	return func(s *scene) func() {
		quit := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				f(s)
				select {
				case <-time.After(every):
				case <-quit:
					return
				}
			}
		})
		return func() {
			close(quit)
			wg.Wait()
		}
	}
}

// lose loses what concerns the hot lock, one at least.
func lose(next func(p *faultproxy.Proxy, text string)) func(*scene) func() {
	begin := repeat(5*time.Millisecond, func(s *scene) { next(s.proxy, cmp.Or(s.text, hot)) })
	return func(s *scene) func() {
		before, end := s.proxy.Lost(), begin(s)
		return func() {
			for last := time.Now().Add(2 * time.Minute); s.proxy.Lost() == before; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(last) {
					s.Error("nothing was lost")
					break
				}
			}
			end()
		}
	}
}

// connect opens a connection that is silent for a while.
func connect(s *scene) {
	if c, err := net.Dial("tcp", s.server.Addr()); err == nil {
		time.AfterFunc(200*time.Millisecond, func() { c.Close() })
	}
}

// jump moves the server's clock. It is not set right later: that would be a jump in the other direction.
func jump(d time.Duration) func(*scene) func() {
	return func(s *scene) func() {
		s.clock.set(s.T, s.clock.value+d.Microseconds())
		return nothing
	}
}

// preloaded is a library of C that changes what servers get from the system. It changes all servers that are started
// from now on in a test, which must not run beside others.
type preloaded struct {
	path  string // of a file with value
	value int64
}

// preload compiles testdata/NAME.c and prepares the environment of servers, in which variable names the file.
func preload(t *testing.T, name, variable string) *preloaded {
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // some servers are another user's
		t.Fatal(err)
	}
	library := filepath.Join(dir, name+".so")
	gcc, err := exec.LookPath("gcc")
	must.OK(t, err, "a change of the system needs gcc")
	if out, err := exec.Command(gcc, "-shared", "-fPIC", "-O1", "-o", library, "testdata/"+name+".c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	p := &preloaded{path: filepath.Join(dir, "value")}
	p.set(t, 0)
	t.Setenv(variable, p.path)
	t.Setenv("LD_PRELOAD", strings.TrimSpace(library+" "+os.Getenv("LD_PRELOAD")))
	return p
}

func (p *preloaded) set(t *testing.T, value int64) {
	p.value = value
	f, err := os.OpenFile(p.path, os.O_RDWR|os.O_CREATE, 0o644)
	if err == nil {
		_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(value)), 0)
		f.Close()
	}
	must.OK(t, err)
}

// withClock returns d with a clock that can jump.
func withClock(d deployment) deployment {
	start := d.start
	d.alone, d.start = true, func(s *scene) {
		s.clock = preload(s.T, "clock", "DISTLOCK_CHAOS_CLOCK")
		start(s)
	}
	return d
}

// withDisk returns d with a disk that can be slow or full.
func withDisk(d deployment) deployment {
	start := d.start
	d.alone, d.start = true, func(s *scene) {
		s.disk = preload(s.T, "disk", "DISTLOCK_CHAOS_DISK")
		start(s)
	}
	return d
}
