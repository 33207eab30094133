package etcd

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop/peers"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	// crashTTL is the TTL of locks whose holder crashes.
	crashTTL = 4 * time.Second
	// grace is the time that a busy machine may add. A server looks for ended leases twice a second, and revokes a
	// limited number at a time. All other leases live longer.
	grace = 20 * time.Second
)

// crashingPeers acquire a lock, and return a function that crashes its holder.
var crashingPeers = map[string]func(t *testing.T, d *deployment, name string) (die func()){
	"concurrency.Mutex":              crashingMutex,
	"v3lock":                         crashingV3lock,
	"etcdctl":                        crashingEtcdctl(false),
	"etcdctl of the current release": crashingEtcdctl(true),
}

// crashingMutex closes its connection, and revokes nothing.
func crashingMutex(t *testing.T, d *deployment, name string) func() {
	c := d.client(t)
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(crashTTL.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	peers.Take(t, mutexSide{s}, name)
	return func() { c.Close() }
}

func crashingV3lock(t *testing.T, d *deployment, name string) func() {
	c := d.client(t)
	peers.Take(t, leaseV3lock(t, c, crashTTL), name)
	return func() { c.Close() }
}

func crashingEtcdctl(current bool) func(t *testing.T, d *deployment, name string) func() {
	return func(t *testing.T, d *deployment, name string) func() {
		h := &etcdctlHeld{}
		s := newEtcdctl(current)(t, d).(etcdctlSide)
		if _, err := h.start(s, "--ttl", fmt.Sprint(crashTTL.Seconds()), prefix+name); err != nil {
			t.Fatal(err)
		}
		return func() { h.cmd.Process.Kill() }
	}
}

func TestPeerDies(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		for kind, mortal := range crashingPeers {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				c, name := d.client(t), newName()
				die := mortal(t, d, name)
				w := peers.StartWaiter(t, d.distlock(t, nil), name)
				awaitKeys(t, c, name, 2)
				before := createRevision(t, c, lockKeys(t, c, name)[0])
				if g := awaitFreed(t, c, name, w, die); g.Fence() <= before {
					t.Errorf("fence %d came after revision %d", g.Fence(), before)
				}
			})
		}
	})
}

func TestDistlockDies(t *testing.T) {
	eachPeer(t, func(t *testing.T, d *deployment, p peerKind) {
		name := newName()
		child := startChild(t, d, name)
		w := peers.StartWaiter(t, p.open(t, d), name)
		c := d.client(t)
		awaitKeys(t, c, name, 2)
		awaitFreed(t, c, name, w, func() { child.Process.Kill() })
	})
}

// awaitFreed crashes a holder, and expects that the waiter gets the lock when the holder's lease ends.
func awaitFreed(t *testing.T, c *clientv3.Client, name string, w peers.Waiter, die func()) peers.Grant {
	t.Helper()
	asked := time.Now()
	left := leaseLeft(t, c, lockKeys(t, c, name)[0])
	w.Waits(t)
	die()
	died := time.Now()
	g := w.Granted(t)
	took := g.At.Sub(died).Round(time.Millisecond)
	t.Logf("the lock was free %v after its holder had died", took)
	if g.At.Sub(asked) < left || took > crashTTL+grace {
		t.Errorf("want between %v and %v", left, crashTTL+grace)
	}
	peers.Give(t, g)
	return g
}

// leaseLeft returns the least time that the lease of a key lives, unless it is revoked.
func leaseLeft(t *testing.T, c *clientv3.Client, key string) time.Duration {
	t.Helper()
	r, err := c.Get(t.Context(), key)
	if err != nil || len(r.Kvs) == 0 {
		t.Fatalf("%s: %v", key, err)
	}
	left, err := c.TimeToLive(t.Context(), clientv3.LeaseID(r.Kvs[0].Lease))
	if err != nil || left.TTL < 1 {
		t.Fatalf("%s: %d s left, %v", key, left.TTL, err)
	}
	return time.Duration(left.TTL) * time.Second
}

// createRevision returns the revision at which a key was created.
func createRevision(t *testing.T, c *clientv3.Client, key string) uint64 {
	t.Helper()
	r, err := c.Get(t.Context(), key)
	if err != nil || len(r.Kvs) == 0 {
		t.Fatalf("%s: %v", key, err)
	}
	return uint64(r.Kvs[0].CreateRevision)
}

// A child is a process that holds a lock of distlock and is killed.
const (
	childEnv = "DISTLOCK_INTEROP_CHILD" // the URL
	nameEnv  = "DISTLOCK_INTEROP_NAME"  // the lock
)

func startChild(t *testing.T, d *deployment, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+d.url(), nameEnv+"="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testserver.Spawn(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "holds\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return cmd
}

// runChild holds a lock until the process is killed.
func runChild(url, name string) {
	if err := hold(context.Background(), url, name); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("holds")
	select {}
}

func hold(ctx context.Context, url, name string) error {
	c, err := distlock.Open(ctx, url, &distlock.Options{TTL: crashTTL})
	if err != nil {
		return err
	}
	_, err = c.Mutex(name).Lock(ctx)
	return err
}
