// Package curator proves that distlock and Apache Curator share locks: Go processes and
// JVMs with the real Curator take turns on every kind of them, in one real ZooKeeper.
package curator

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/zklock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop"
)

// life is the timeout of sessions that are not meant to end by themselves.
const life = 2 * time.Minute

// edition is a version of Curator.
type edition struct {
	name string
	jvms *interop.JVMs
}

var (
	current  = &edition{"5.9.0", &interop.JVMs{Class: "distlock.interop.CuratorPeer"}}
	debian   = &edition{"Debian", &interop.JVMs{Class: "distlock.interop.CuratorPeer", Jars: testserver.DebianCurator}}
	editions = []*edition{current, debian}
)

// each runs a test with each version of Curator.
func each(t *testing.T, test func(t *testing.T, e *edition)) {
	for _, e := range editions {
		t.Run(e.name, func(t *testing.T) { test(t, e) })
	}
}

func TestLongVersions(t *testing.T) {
	expect.Equal(t, current.version(t), current.name, "the current release")
	if got := debian.version(t); got == current.name {
		t.Errorf("Debian's is %s too", got)
	} else {
		t.Logf("Debian's is %s", got)
	}
}

func (e *edition) version(t *testing.T) string {
	t.Helper()
	return e.jvms.Shared(t, 0).Thread("main").Call("version").Wait(t)[0]
}

// deployment is a ZooKeeper that both sides use.
type deployment struct{ addrs []string }

// single is one server.
func single(t *testing.T) *deployment {
	return &deployment{[]string{testserver.SharedZooKeeper(t).Addr()}}
}

func (d *deployment) hosts() string { return strings.Join(d.addrs, ",") }

// url is how Go reaches the deployment.
func (d *deployment) url() string { return "zk://" + d.hosts() }

// client is a Go client with a session of its own.
func (d *deployment) client(t *testing.T, opts *distlock.Options) *distlock.Client {
	t.Helper()
	return interop.Client(t, d.url(), opts)
}

// javaClient is the process's client of a deployment with that life of its session.
func (d *deployment) javaClient(t *testing.T, j *interop.JVM, life time.Duration) string {
	t.Helper()
	return j.Client(t, d.hosts()+" "+life.String(), d.hosts(), interop.Millis(life))
}

// kind is a kind of lock, as both sides know it.
type kind struct{ interop.Kind }

var (
	mutex = kind{interop.Kind{Java: "mutex", Sharing: interop.Alone, Lock: interop.Mutex}}
	write = kind{interop.Kind{Java: "write", Sharing: interop.Alone, Lock: interop.Writer}}
	read  = kind{interop.Kind{Java: "read", Sharing: interop.Reading, Lock: interop.Reader}}
	multi = kind{interop.Kind{Java: "multi", Sharing: interop.Alone, Lock: interop.Several}}
	// An InterProcessSemaphoreMutex is a semaphore with one permit.
	lone = kind{interop.Kind{Java: "lone", Sharing: interop.Alone, Lock: interop.Permit(1)}}
)

// permit is a semaphore with a number of permits.
func permit(limit int) kind {
	return kind{interop.Kind{Java: fmt.Sprint("permit-", limit), Sharing: interop.Counted, Limit: limit, Lock: interop.Permit(limit)}}
}

// name is the name that both sides use for a lock of the kind: a multi-lock's has two.
func (k kind) name(base string) string {
	if k.Java == multi.Java {
		return base + "-a," + base + "-b"
	}
	return base
}

// excludes returns the kind that is refused beside k.
func (k kind) excludes() kind {
	if k.Java == read.Java {
		return write
	}
	return k
}

// fixture has both sides of a test of one lock.
type fixture struct {
	d         *deployment
	k         kind
	name      string
	j         *interop.JVM
	java      string // Java's client
	th, other *interop.Thread
	c         *distlock.Client
	lock      interop.Locker
}

func newFixture(t *testing.T, d *deployment, e *edition, k kind) *fixture {
	t.Helper()
	return fixtureOf(t, d, e, k, k.name(interop.NewName(t)))
}

func fixtureOf(t *testing.T, d *deployment, e *edition, k kind, name string) *fixture {
	t.Helper()
	j, c := e.jvms.Shared(t, 0), d.client(t, &distlock.Options{TTL: life})
	return &fixture{
		d: d, k: k, name: name, j: j, java: d.javaClient(t, j, life), th: j.Thread("one"), other: j.Thread("two"),
		c: c, lock: k.Lock(c, name),
	}
}

// on is a call on the lock by Java.
func (f *fixture) on(th *interop.Thread, command string, args ...string) *interop.Call {
	return f.onKind(th, f.k, command, args...)
}

func (f *fixture) onKind(th *interop.Thread, k kind, command string, args ...string) *interop.Call {
	return th.Call(append([]string{command, f.java, k.Java, f.name}, args...)...)
}

// keepsOut expects that Java can't have a lock of the kind.
func (f *fixture) keepsOut(t *testing.T, k kind) {
	t.Helper()
	f.onKind(f.other, k, "try", "0").Says(t, "false")
}

// nodes are the children of a path in their order of coming.
func (f *fixture) nodes(t *testing.T, path string) []string {
	t.Helper()
	all := f.j.Thread("main").Call("nodes", f.java, path).Wait(t)
	if slices.Equal(all, []string{"-"}) {
		return nil
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(sequence(a), sequence(b)) })
	return all
}

// sequence are the digits at the end of a node's name.
func sequence(node string) string { return node[max(0, len(node)-10):] }

// leavesNothing expects that no node of the lock is left. The server that Java asks may be
// behind Go's.
func (f *fixture) leavesNothing(t *testing.T) {
	t.Helper()
	var left []string
	interop.Eventually(t, func() string { return fmt.Sprintf("nodes that are left: %q", left) }, func() bool {
		left = f.allNodes(t)
		return len(left) == 0
	})
}

// allNodes returns the nodes of a lock, or of both parts of a semaphore.
func (f *fixture) allNodes(t *testing.T) []string {
	t.Helper()
	var all []string
	for name := range strings.SplitSeq(f.name, ",") {
		for _, part := range []string{"", "/locks", "/leases"} {
			all = append(all, f.nodes(t, "/"+name+part)...)
		}
	}
	return slices.DeleteFunc(all, func(node string) bool { return node == "locks" || node == "leases" })
}

func TestMain(m *testing.M) {
	interop.RunChild(holdAll)
	os.Exit(testserver.Run(m))
}

// holdAll is a Go process that holds a lock of every kind until it is killed.
func holdAll(url, _, name string) error {
	ctx := context.Background()
	c, err := distlock.Open(ctx, url, &distlock.Options{TTL: shortLife})
	if err != nil {
		return err
	}
	for _, m := range mortals {
		if _, err := m.held.Lock(c, m.name(name)).Lock(ctx); err != nil {
			return err
		}
	}
	return nil
}
