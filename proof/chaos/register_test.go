//go:build linux

package chaos

import (
	"net"
	"net/rpc"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Access is how a worker presents itself to the register.
type Access struct {
	Process, PID int
	Name         string
	Fence        uint64
	Works        time.Duration // between read and write
	Numbers      Numbers       // what was read
	Deadline     int64         // of the lease, when the worker looked last
}

// Numbers are the register's values of a name.
type Numbers struct {
	Plain, Fenced int
	Stale         bool // Fenced is not given: a greater fence has been registered
}

// register is the data that the locks protect: for each name two numbers, one of them with a fence. It lives in the process of
// the test, so that no fault reaches it. Its methods are called by workers.
type register struct {
	mu            sync.Mutex
	plain, fenced map[string]int
	fences        map[string]uint64 // the greatest ones
	late          map[string]bool   // whether the last write without a fence came after its writer's deadline
	counts        Updates
	long          chan Access  // a hold of the hot lock that just began and will last
	look          func(Access) // called once, when the next holder of the hot lock has looked and will write
}

// Updates counts what happened to a register.
type Updates struct {
	Done       int // without a fence
	Lost       int // overwritten by a writer that had read an older number
	LostLate   int // of the lost ones, those with a writer whose deadline had passed since it read
	LostFenced int // lost though their writers had presented fences
	Refused    int // accesses with a fence smaller than another one before
}

// startRegister returns a register and the socket where workers reach it.
func startRegister(t *testing.T) (*register, string) {
	r := &register{plain: map[string]int{}, fenced: map[string]int{}, fences: map[string]uint64{}, late: map[string]bool{}, long: make(chan Access, 1)}
	server := rpc.NewServer()
	must.OK(t, server.RegisterName("Register", r))
	socket := filepath.Join(t.TempDir(), "register")
	l := must.Get(net.Listen("unix", socket))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go server.ServeConn(c)
		}
	}()
	return r, socket
}

// Enter reads both numbers, the second one after it has registered the fence.
func (r *register) Enter(a Access, n *Numbers) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.Name == hot && a.Works >= 300*time.Millisecond {
		select {
		case r.long <- a:
		default:
		}
	}
	n.Plain = r.plain[a.Name]
	if n.Stale = !r.admits(a); !n.Stale {
		n.Fenced = r.fenced[a.Name]
	}
	return nil
}

// admits registers a fence, unless it has seen a greater one.
func (r *register) admits(a Access) bool {
	if a.Fence < r.fences[a.Name] {
		r.counts.Refused++
		return false
	}
	r.fences[a.Name] = a.Fence
	return true
}

// Look is called between a worker's last look at its lease and its write. A fault may stop the worker here.
func (r *register) Look(a Access, _ *bool) error {
	r.mu.Lock()
	look := r.look
	r.look = nil
	r.mu.Unlock()
	if look != nil {
		look(a)
	}
	return nil
}

// Write writes what was read, plus one, first without the fence and then with it.
func (r *register) Write(a Access, _ *bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Done++
	late := now() > a.Deadline
	if r.plain[a.Name] != a.Numbers.Plain {
		r.counts.Lost++
		if late || r.late[a.Name] {
			r.counts.LostLate++
		}
	}
	r.late[a.Name] = late
	r.plain[a.Name] = a.Numbers.Plain + 1
	if a.Numbers.Stale || !r.admits(a) {
		return nil
	}
	if r.fenced[a.Name] != a.Numbers.Fenced {
		r.counts.LostFenced++
	}
	r.fenced[a.Name] = a.Numbers.Fenced + 1
	return nil
}

func (r *register) updates() Updates {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

// atLook arranges that f is called when the next holder of the hot lock is about to write; nil ends that.
func (r *register) atLook(f func(Access)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.look = f
}

// awaitLongHold returns when a worker has just begun to hold the hot lock for long, or after the time at most, and which one did.
func (r *register) awaitLongHold(most time.Duration) (a Access) {
	select {
	case <-r.long: // an old one
	default:
	}
	select {
	case a = <-r.long:
	case <-time.After(most):
	}
	return a
}

// moved reports whether others have written both numbers since a worker read them.
func (r *register) moved(a Access) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.plain[a.Name] != a.Numbers.Plain && r.fenced[a.Name] != a.Numbers.Fenced
}

// The register sees lost updates, and a fence prevents them if it is registered before the read.
func TestRegister(t *testing.T) {
	r, _ := startRegister(t)
	enter := func(fence uint64) Access {
		a := Access{Name: hot, Fence: fence, Deadline: now() + int64(time.Hour)}
		r.Enter(a, &a.Numbers)
		if a.Numbers.Stale {
			t.Fatalf("fence %d is refused", fence)
		}
		return a
	}
	write := func(a Access) { r.Write(a, nil) }
	expect := func(what string, want Updates) {
		t.Helper()
		expect.Equal(t, r.counts, want, what)
	}
	write(enter(1))
	write(enter(2))
	expect("one after the other", Updates{Done: 2})
	a, b := enter(3), enter(4)
	write(a)
	write(b)
	expect("two holders", Updates{Done: 4, Lost: 1, Refused: 1})
	a, b = enter(5), enter(6)
	write(b)
	a.Deadline = now() - 1
	write(a)
	expect("a late writer", Updates{Done: 6, Lost: 2, LostLate: 1, Refused: 2})
	a, b = enter(7), enter(7)
	write(b)
	write(a)
	expect("two with one fence", Updates{Done: 8, Lost: 3, LostLate: 1, LostFenced: 1, Refused: 2})
	a, b = enter(8), enter(9)
	a.Deadline = now() - 1
	write(a)
	write(b)
	expect("a writer after a late one", Updates{Done: 10, Lost: 4, LostLate: 2, LostFenced: 1, Refused: 3})
}
