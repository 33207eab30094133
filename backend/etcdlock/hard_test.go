package etcdlock_test

import (
	"context"
	"errors"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// A day is one on which something breaks while somebody holds the lock that all want.
type day struct {
	name  string
	lasts time.Duration // how long the holder holds on, if it doesn't lose the lock
	loses bool          // it must
	what  func(l *load) (heal func())
}

func TestLeaderIsKilled(t *testing.T) {
	live(t, testserver.EtcdOptions{}, []day{{"the leader is killed", time.Second, false, leaderKilled}})
	noGoroutines(t)
}

// On hard days a cluster's locks stay with one holder at a time: a holder's context ends
// before anybody else has the lock, in whatever way the holder, a server or the network
// fails, and then work goes on.
func TestLongHardDays(t *testing.T) {
	var wg sync.WaitGroup
	for name, days := range map[string][]day{
		"members": {
			{"the leader is killed", 3 * time.Second, false, leaderKilled},
			{"each member is restarted", time.Second, false, eachRestarted},
		},
		"pauses": {
			{"the leader pauses for less than a TTL", time.Second, false, leaderPaused},
			{"the leader pauses for longer than a TTL", 2 * hardTTL, false, leaderPaused},
		},
		"partitions": {
			{"the leader is cut off from the others", 2 * hardTTL, false, leaderIsolated},
			{"a follower is cut off from the others", 2 * hardTTL, false, followerIsolated},
		},
		"networks": {
			{"the holder is cut off", patient, true, holderCutOff},
			{"nobody reaches the leader", 2 * hardTTL, false, leaderUnreachable},
			{"the history is compacted", hardTTL, false, compacted},
			{"the holder is cut off again", patient, true, holderCutOff},
		},
	} {
		// A leader of etcd 3.4.23 that was paused ends leases which others have prolonged.
		options := testserver.EtcdOptions{Current: name == "pauses"}
		wg.Go(func() { t.Run(name, func(t *testing.T) { live(t, options, days) }) })
	}
	wg.Wait()
	noGoroutines(t)
}

func live(t *testing.T, options testserver.EtcdOptions, days []day) {
	l := startLoad(t, testserver.EtcdCluster(t, options))
	for _, d := range days {
		l.endure(d)
	}
	l.finish(30)
}

// endure lets one thing break. Before, during and after that work must go on.
func (l *load) endure(d day) {
	l.t.Helper()
	l.more(contended, 5)
	lease := l.take(l.sitter, contended)
	start := time.Now()
	heal := d.what(l)
	select {
	case <-lease.Context().Done():
		l.t.Logf("%s: the holder loses the lock after %v: %v", d.name, since(start), context.Cause(lease.Context()))
	case <-time.After(d.lasts):
		l.t.Logf("%s: the holder keeps the lock", d.name)
	}
	if d.loses && !errors.Is(lease.Err(), distlock.ErrLost) {
		l.t.Errorf("%s: the holder's lease: %v", d.name, lease.Err())
	}
	ended := time.Now()
	l.give(lease)
	next := l.more(contended, 1)
	l.t.Logf("%s: the next has it %v later, and others go on %v after that", d.name, next.Round(time.Millisecond), l.more(contended, 5).Round(time.Millisecond))
	if rest := d.lasts - time.Since(start); rest > 0 && !d.loses {
		time.Sleep(rest) // the fault is to last that long
	}
	heal()
	healed := time.Now()
	l.more(contended, 5)
	l.more("cold0", 1)
	l.more("cold1", 1)
	l.t.Logf("%s: healed %v after the hold's end, all work again after %v", d.name, healed.Sub(ended).Round(time.Millisecond), since(healed))
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }

func leaderKilled(l *load) func() {
	old := l.g.Leader()
	old.Kill()
	return func() {
		l.g.AwaitLeader(old)
		old.Start()
	}
}

func eachRestarted(l *load) func() {
	for _, s := range l.g.Members() {
		s.Stop()
		s.Start()
	}
	return func() {}
}

func leaderPaused(l *load) func() {
	s := l.g.Leader()
	s.Pause()
	return s.Resume
}

func leaderIsolated(l *load) func() {
	l.g.Isolate(l.g.Leader())
	return l.g.Heal
}

func followerIsolated(l *load) func() {
	l.g.Isolate(l.g.Followers()[0])
	return l.g.Heal
}

// holderCutOff: nothing that the holder sends arrives, and its connections stay open.
func holderCutOff(l *load) func() {
	l.sitter.silence()
	return l.sitter.pass
}

// leaderUnreachable: connections to the leader stay open, and nothing comes through.
func leaderUnreachable(l *load) func() {
	leader, i := l.g.Leader(), 0
	for l.g.Members()[i] != leader {
		i++
	}
	for _, p := range l.programs {
		p.ways[i].Silence()
	}
	return func() {
		for _, p := range l.programs {
			p.ways[i].Pass()
		}
	}
}

// compacted: what waiters watch from is forgotten, and then they lose their connections.
func compacted(l *load) func() {
	c, err := clientv3.New(clientv3.Config{Endpoints: l.g.Addrs(), Logger: zap.NewNop()})
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		var at int64
		for range 20 {
			put, err := c.Put(l.ctx, "other", "x")
			if err != nil {
				l.t.Fatal(err)
			}
			at = put.Header.Revision
		}
		if _, err := c.Compact(l.ctx, at); err != nil {
			l.t.Fatal(err)
		}
		for _, p := range l.programs {
			for _, w := range p.ways {
				w.Cut()
			}
		}
	}
	if _, err := c.Delete(l.ctx, "other"); err != nil {
		l.t.Fatal(err)
	}
	return func() {}
}

// noGoroutines waits until no backend and no connection has a goroutine any more.
func noGoroutines(t *testing.T) {
	t.Helper()
	var left string
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var b strings.Builder
		pprof.Lookup("goroutine").WriteTo(&b, 1)
		if left = b.String(); !strings.Contains(left, "etcdlock.(*") && !strings.Contains(left, "google.golang.org/grpc") {
			return
		}
	}
	t.Errorf("goroutines that are left:\n%s", left)
}
