//go:build linux

package chaos

import (
	"errors"
	"net"
	"net/rpc"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Access is how a worker presents itself to the register.
type Access struct {
	Process, PID     int
	Name             string
	Fence            uint64
	Works            time.Duration // between read and write
	From, FromFenced int           // what was read
	Deadline         int64         // of the lease, when the worker looked last
}

// register is what the locks protect: for each name two numbers, one of them with a fence. It lives in the process of
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
	LostLate   int // those of them to which a writer belongs whose deadline had passed since it looked
	LostFenced int // lost though their writers had presented fences
	Refused    int // accesses with a fence smaller than another one before
}

var errStale = errors.New("stale fence")

// startRegister returns a register and the socket where workers reach it.
func startRegister(t *testing.T) (*register, string) {
	r := &register{plain: map[string]int{}, fenced: map[string]int{}, fences: map[string]uint64{}, late: map[string]bool{}, long: make(chan Access, 1)}
	server := rpc.NewServer()
	if err := server.RegisterName("Register", r); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "register")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
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

// Read reads the number without a fence.
func (r *register) Read(a *Access, n *int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n = r.plain[a.Name]
	return nil
}

// Enter registers a fence and then reads.
func (r *register) Enter(a *Access, n *int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.Name == hot && a.Works >= 300*time.Millisecond {
		select {
		case r.long <- *a:
		default:
		}
	}
	if a.Fence < r.fences[a.Name] {
		r.counts.Refused++
		return errStale
	}
	r.fences[a.Name] = a.Fence
	*n = r.fenced[a.Name]
	return nil
}

// Look is called between a worker's last look at its lease and its write. A fault may stop the worker here.
func (r *register) Look(a *Access, _ *bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.look != nil && a.Name == hot {
		r.look(*a)
		r.look = nil
	}
	return nil
}

// Write writes what was read, plus one.
func (r *register) Write(a *Access, _ *bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Done++
	late := now() > a.Deadline
	if r.plain[a.Name] != a.From {
		r.counts.Lost++
		if late || r.late[a.Name] {
			r.counts.LostLate++
		}
	}
	r.late[a.Name] = late
	r.plain[a.Name] = a.From + 1
	return nil
}

// WriteFenced is Write for a worker with a fence.
func (r *register) WriteFenced(a *Access, _ *bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.Fence < r.fences[a.Name] {
		r.counts.Refused++
		return errStale
	}
	r.fences[a.Name] = a.Fence
	if r.fenced[a.Name] != a.FromFenced {
		r.counts.LostFenced++
	}
	r.fenced[a.Name] = a.FromFenced + 1
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

// awaitLongHold returns when a worker has just begun to hold the hot lock for long, or after the time at most.
func (r *register) awaitLongHold(most time.Duration) {
	select {
	case <-r.long: // an old one
	default:
	}
	select {
	case <-r.long:
	case <-time.After(most):
	}
}

// moved reports whether others have written both numbers since a worker read them.
func (r *register) moved(a Access) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.plain[a.Name] != a.From && r.fenced[a.Name] != a.FromFenced
}

// The register sees lost updates, and a fence prevents them if it is registered before the read.
func TestRegister(t *testing.T) {
	r, _ := startRegister(t)
	var ok bool
	read := func(fence uint64) *Access {
		a := &Access{Name: hot, Fence: fence, Deadline: now() + int64(time.Hour)}
		if r.Read(a, &a.From) != nil || r.Enter(a, &a.FromFenced) != nil {
			t.Fatalf("fence %d is refused", fence)
		}
		return a
	}
	write := func(a *Access) error {
		r.Write(a, &ok)
		return r.WriteFenced(a, &ok)
	}
	expect := func(what string, want Updates) {
		t.Helper()
		if r.counts != want {
			t.Errorf("%s: %+v, want %+v", what, r.counts, want)
		}
	}
	write(read(1))
	write(read(2))
	expect("one after the other", Updates{Done: 2})
	a, b := read(3), read(4)
	if write(a) == nil || write(b) != nil {
		t.Error("want the smaller fence to be refused, and no other")
	}
	expect("two holders", Updates{Done: 4, Lost: 1, Refused: 1})
	a, b = read(5), read(6)
	write(b)
	a.Deadline = now() - 1
	write(a)
	expect("a late writer", Updates{Done: 6, Lost: 2, LostLate: 1, Refused: 2})
	a, b = read(7), read(7)
	write(b)
	write(a)
	expect("two with one fence", Updates{Done: 8, Lost: 3, LostLate: 1, LostFenced: 1, Refused: 2})
	a, b = read(8), read(9)
	a.Deadline = now() - 1
	write(a)
	write(b)
	expect("a writer after a late one", Updates{Done: 10, Lost: 4, LostLate: 2, LostFenced: 1, Refused: 3})
}
