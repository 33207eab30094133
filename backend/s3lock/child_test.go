package s3lock

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// With childEnv set to the URL of a bucket, the test binary is a process that holds a lock until the lease is lost.
const childEnv = "S3LOCK_TEST_CHILD"

// ttl is that of the child's lease.
const ttl = 2 * time.Second

func play(url string) {
	locks, err := distlock.Open(context.Background(), url, &distlock.Options{TTL: ttl})
	if err != nil {
		fmt.Println(err)
		return
	}
	lease, err := locks.Mutex("job").Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("holds")
	<-lease.Context().Done()
	fmt.Println("lost", context.Cause(lease.Context()))
}

func hold(t *testing.T, url string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(must.Get(os.Executable())(t))
	cmd.Env = append(os.Environ(), childEnv+"="+url)
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, testserver.Spawn(cmd))
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewReader(out)
	expect.Equal(t, must.Get(lines.ReadString('\n'))(t), "holds\n")
	return cmd, lines
}

// A waiter has the lock of a process that was killed after its TTL, and not before.
func TestLongKilledHolder(t *testing.T) {
	url := urlOf(testserver.S3(t, testserver.S3Options{}).Endpoint())
	cmd, _ := hold(t, url)
	locks := must.Get(distlock.Open(t.Context(), url, locktest.Patient()))(t)
	must.OK(t, cmd.Process.Kill())
	began := time.Now()
	lease := must.Get(locks.Mutex("job").Lock(locktest.Soon(t)))(t)
	if took := time.Since(began); took < ttl/2 {
		t.Errorf("the lock of a dead process was free after %v, which renewed it for %v", took, ttl)
	}
	expect.OK(t, lease.Unlock(t.Context()))
	expect.OK(t, locks.Close())
}

// A process that is frozen for longer than its TTL has lost the lock when it goes on, and its late renewal takes nothing.
func TestLongFrozenHolder(t *testing.T) {
	url := urlOf(testserver.S3(t, testserver.S3Options{}).Endpoint())
	cmd, lines := hold(t, url)
	locks := must.Get(distlock.Open(t.Context(), url, locktest.Patient()))(t)
	must.OK(t, cmd.Process.Signal(syscall.SIGSTOP))
	lease := must.Get(locks.Mutex("job").Lock(locktest.Soon(t)))(t)
	must.OK(t, cmd.Process.Signal(syscall.SIGCONT))
	if line := must.Get(lines.ReadString('\n'))(t); !strings.HasPrefix(line, "lost ") {
		t.Errorf("the process that was frozen says %q", line)
	}
	expect.OK(t, lease.Err())
	expect.OK(t, lease.Unlock(t.Context()))
	expect.OK(t, locks.Close())
}

// A lease outlives a restart of the server that is shorter than its TTL.
func TestLongServerIsKilled(t *testing.T) {
	srv := testserver.S3(t, testserver.S3Options{})
	locks := must.Get(distlock.Open(t.Context(), urlOf(srv.Endpoint()), locktest.Patient()))(t)
	lease := must.Get(locks.Mutex("job").Lock(t.Context()))(t)
	srv.Kill()
	if err := lease.Extend(t.Context(), 10*time.Minute); err == nil {
		t.Error("extended at a server that is dead")
	}
	srv.Start()
	expect.OK(t, lease.Extend(locktest.Soon(t), 10*time.Minute))
	expect.OK(t, lease.Unlock(t.Context()))
	expect.OK(t, locks.Close())
}

// A write that arrives after its sender gave up, and after the lock was released, takes nothing.
func TestLongLateCalls(t *testing.T) {
	srv := testserver.SharedS3(t)
	proxy := faultproxy.New(t, srv.Addr())
	late, other := connect(t, urlOf("http://"+proxy.Addr())), connect(t, urlOf(srv.Endpoint()))
	first := request("late")
	locktest.Acquire(t, other, first)
	locktest.Release(t, other, first)
	for range 5 {
		r := request("late")
		proxy.HoldBack("PUT ", time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := late.Acquire(ctx, r); err == nil || driver.Final(err) {
			t.Fatalf("a write that is held back: %v", err)
		}
		cancel()
		expect.Be(t, late.Release(t.Context(), r.Hold), driver.ErrLost)
		proxy.Deliver()
		locktest.Eventually(t, "the late write arrives", func() bool { return proxy.Held() == 0 })
		next := request("late")
		locktest.Acquire(t, other, next)
		expect.Be(t, late.Release(t.Context(), r.Hold), driver.ErrLost)
		locktest.Release(t, other, next)
	}
}

// Processes whose clocks are two hours apart exclude each other at a server that checks the times of signatures.
func TestLongClocksApart(t *testing.T) {
	u := must.Get(driver.ParseURL(urlOf(testserver.SharedS3(t).Endpoint())))(t)
	var apart []*store
	for _, wrong := range []time.Duration{time.Hour, -time.Hour} {
		s := must.Get(openStore(t.Context(), u))(t)
		t.Cleanup(func() { expect.OK(t, s.Close()) })
		s.skew.Store(int64(wrong)) // as if the clock had been set in this moment
		apart = append(apart, s)
	}
	ahead, behind := apart[0].backend(), apart[1].backend()
	r := request("clocks")
	locktest.Acquire(t, ahead, r)
	locktest.Held(t, behind, request("clocks"))
	locktest.Release(t, ahead, r)
	r = request("clocks")
	locktest.Acquire(t, behind, r)
	locktest.Release(t, behind, r)
}
