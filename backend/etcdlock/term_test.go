package etcdlock

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// replacedLeader is a member that was the leader when it was paused. It answers keep-alives as
// of its own term, since they need nobody else, and transactions as of the term of the
// leader that replaced it.
type replacedLeader struct {
	pb.UnimplementedLeaseServer
	pb.UnimplementedKVServer
	term, knows atomic.Uint64 // the cluster's, the member's
	kept        atomic.Int64
	meanwhile   atomic.Pointer[func()] // before the next keep-alive is answered
}

func (s *replacedLeader) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return &pb.LeaseGrantResponse{Header: &pb.ResponseHeader{RaftTerm: s.term.Load()}, ID: 7, TTL: r.TTL}, nil
}

func (s *replacedLeader) LeaseRevoke(context.Context, *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return &pb.LeaseRevokeResponse{}, nil
}

func (s *replacedLeader) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil
		}
		s.kept.Add(1)
		if f := s.meanwhile.Swap(nil); f != nil {
			(*f)()
		}
		stream.Send(&pb.LeaseKeepAliveResponse{Header: &pb.ResponseHeader{RaftTerm: s.knows.Load()}, ID: r.ID, TTL: 30})
	}
}

func (s *replacedLeader) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	return &pb.TxnResponse{Header: &pb.ResponseHeader{RaftTerm: s.term.Load(), Revision: 9}, Succeeded: true}, nil
}

func serveReplacedLeader(t *testing.T) (*replacedLeader, *Backend) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, srv := &replacedLeader{}, grpc.NewServer()
	s.term.Store(5)
	s.knows.Store(5)
	pb.RegisterLeaseServer(srv, s)
	pb.RegisterKVServer(srv, s)
	go srv.Serve(l)
	t.Cleanup(srv.Stop)
	return s, openAt(t, l.Addr().String(), nil)
}

// What a leader says of a lease after it has been replaced is not believed: its successor
// ends the lease when it sees fit.
func TestKeepAliveByAReplacedLeader(t *testing.T) {
	s, b := serveReplacedLeader(t)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Fatalf("renewed by the leader: %v", err)
	}

	s.term.Store(6)
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !errors.Is(err, errOldLeader) || errors.Is(err, driver.ErrLost) {
		t.Errorf("renewed by a replaced leader: %v, want an unknown outcome", err)
	}
	if _, err := b.Acquire(t.Context(), request("", driver.Exclusive)); !errors.Is(err, errOldLeader) || driver.Final(err) {
		t.Errorf("granted on a lease kept alive by a replaced leader: %v, want an unknown outcome", err)
	}

	s.knows.Store(6)
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Errorf("renewed by its successor: %v", err)
	}
}

// The first grant after a change of leaders asks the new one how long the lease has.
func TestGrantAfterAChangeOfLeaders(t *testing.T) {
	s, b := serveReplacedLeader(t)
	acquire(t, b, request("", driver.Exclusive))
	s.term.Store(6)
	s.knows.Store(6)
	start, kept := time.Now(), s.kept.Load()
	g := acquire(t, b, request("", driver.Exclusive))
	if s.kept.Load() == kept {
		t.Error("no keep-alive under the new leader")
	}
	if least := 30*time.Second - time.Since(start); g.TTL < least {
		t.Errorf("TTL %v, want at least %v", g.TTL, least)
	}
}

// Who is granted a lock has somebody who will tell of its loss, also if the lease was found
// to have ended before the grant was complete.
func TestGrantOnALeaseThatEndsMeanwhile(t *testing.T) {
	s, b := serveReplacedLeader(t)
	first := request("", driver.Exclusive)
	acquire(t, b, first)
	l := b.owners.get(first.Owner).lease
	s.term.Store(6)
	s.knows.Store(6)
	ends := func() { b.leases.markEnded(l) }
	s.meanwhile.Store(&ends)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	if c := b.owners.get(r.Owner); c == nil || c.lease == l {
		t.Errorf("granted on a lease that has ended: %+v", c)
	}
}
