package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// A right or a login that is withdrawn for some seconds ends nothing for good, and leaves nothing.
func TestRefused(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
	var users atomic.Int32
	for what, withdraw := range map[string]func(user string, own testserver.EtcdGrant) (restore func()){
		"rights": func(user string, own testserver.EtcdGrant) func() {
			srv.RevokePrefix(user, own.Prefix)
			return func() { srv.GrantPrefix(user, own) }
		},
		"login": func(user string, _ testserver.EtcdGrant) func() {
			srv.SetPassword(user, "another")
			return func() { srv.SetPassword(user, "x") }
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
				user := fmt.Sprint("user", users.Add(1))
				own := testserver.EtcdGrant{Prefix: user + "/", Read: true, Write: true}
				url := patiently(srv.AddUser(user, "x", own) + "/" + user)
				return drivertest.Harness{
					Open:     func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) },
					Withdraw: func() func() { return withdraw(user, own) },
				}
			})
		})
	}
}

// A login that is refused for some seconds ends no wait, no candidacy and no hold, and an Unlock meanwhile frees its lock
// afterwards.
func TestProgramsOutliveARefusedLogin(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
	own := testserver.EtcdGrant{Prefix: "locks/", Read: true, Write: true}
	url := patiently(srv.AddUser("ann", "x", own) + "/locks")
	open := func() *distlock.Client {
		c := must.Get(distlock.Open(t.Context(), url, locktest.Patient()))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
	a, b := open(), open()
	lock := func(c *distlock.Client, name string) *distlock.Lease {
		t.Helper()
		l := must.Get(c.Mutex(name).Lock(t.Context()))(t)
		return l
	}
	blocked, elected, kept, freed := lock(b, "waited for"), lock(b, "leader"), lock(a, "kept"), lock(a, "freed")
	ended := make(chan error, 2)
	go func() { _, err := a.Mutex("waited for").Lock(t.Context()); ended <- err }()
	go func() {
		err := a.Election("leader").Lead(t.Context(), func(context.Context) error { return errElected })
		if errors.Is(err, errElected) {
			err = nil
		}
		ended <- err
	}()
	eventually(t, "both wait", func() bool {
		for _, name := range []string{"waited for", "leader"} {
			if info, err := b.Inspect(t.Context(), name); err != nil || info.WaiterCount == 0 {
				return false
			}
		}
		return true
	})
	srv.SetPassword("ann", "another")
	expect.Be(t, freed.Unlock(t.Context()), distlock.ErrUnavailable, "unlock without a login")
	if _, err := a.Mutex("another").TryLock(t.Context()); !errors.Is(err, distlock.ErrUnavailable) || !strings.Contains(err.Error(), "wrong user or password") {
		t.Errorf("try without a login: %v", err)
	}
	expect.Be(t, kept.Extend(t.Context(), 10*time.Minute), distlock.ErrUnavailable, "renewed without a login")
	time.Sleep(4 * time.Second)
	srv.SetPassword("ann", "x")
	for _, l := range []*distlock.Lease{blocked, elected} {
		expect.OK(t, l.Unlock(t.Context()))
	}
	for range 2 {
		expect.OK(t, <-ended, "a wait has ended")
	}
	lock(b, "freed")
	expect.OK(t, kept.Extend(t.Context(), 10*time.Minute), "the holder")
}

var errElected = errors.New("elected")

// Servers say that there is no space also after a request that they have executed.
func TestExecutedWithoutSpace(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	b := backendOf(t, newClientWith(t, testserver.SharedEtcd(t).Addr(), func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if err == nil && method == "/etcdserverpb.KV/Txn" && full.CompareAndSwap(true, false) {
			err = rpctypes.ErrGRPCNoSpace
		}
		return err
	}), nil)
	for _, queue := range []bool{false, true} {
		r := request("", driver.Exclusive)
		r.Queue = queue
		full.Store(true)
		if _, err := b.Acquire(t.Context(), r); !errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, driver.ErrUnsent) || driver.Final(err) {
			t.Errorf("acquire: %v", err)
		}
		release(t, b, r)
		expect.Equal(t, len(storedKeys(t, b, r.Name)), 0, "the released lock is held")
	}
}

// A request with many releases may have been executed, too: that nothing is left to release is no loss then.
func TestReleasesExecutedWithoutSpace(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	b := backendOf(t, newClientWith(t, testserver.SharedEtcd(t).Addr(), func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if txn, is := req.(*pb.TxnRequest); err == nil && is && len(txn.Success) > 1 && full.CompareAndSwap(true, false) {
			err = rpctypes.ErrGRPCNoSpace
		}
		return err
	}), nil)
	var held []driver.Request
	for range 3 {
		r := request("", driver.Exclusive)
		acquire(t, b, r)
		held = append(held, r)
	}
	send := holdBack(t, b)
	full.Store(true)
	var wg sync.WaitGroup
	for _, r := range held {
		wg.Go(func() {
			expect.Be(t, b.Release(t.Context(), r.Hold), rpctypes.ErrNoSpace, "released, but for all that is known")
		})
	}
	send(len(held))
	wg.Wait()
	for _, r := range held {
		expect.Equal(t, len(storedKeys(t, b, r.Name)), 0, "a released lock is held")
	}
}

// A release that shares a request with attempts goes on when these are refused for want of space.
func TestReleaseWithoutSpace(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t, testserver.EtcdOptions{Current: true}) // 3.4 takes attempts in one request with others
	b := openAt(t, srv.Addr(), nil)
	var held []driver.Request
	for range 50 {
		r := request("", driver.Exclusive)
		acquire(t, b, r)
		held = append(held, r)
	}
	alarm := func(action pb.AlarmRequest_AlarmAction) {
		t.Helper()
		must.Get(pb.NewMaintenanceClient(b.client.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{Action: action, Alarm: pb.AlarmType_NOSPACE}))(t)
	}
	alarm(pb.AlarmRequest_ACTIVATE)
	defer alarm(pb.AlarmRequest_DEACTIVATE)
	var wg sync.WaitGroup
	for _, r := range held {
		wg.Go(func() {
			if _, err := b.Acquire(t.Context(), request("", driver.Exclusive)); err == nil || driver.Final(err) {
				t.Errorf("acquire without space: %v", err)
			}
		})
		wg.Go(func() {
			expect.OK(t, b.Release(t.Context(), r.Hold))
		})
	}
	wg.Wait()
}
