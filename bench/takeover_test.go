package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/distlock/distlock"
)

// takeOverTTL is the TTL of a leader that is killed: the shortest of etcd.
const takeOverTTL = 2 * time.Second

// takeover is the time without a leader.
var takeover = scenario{
	name: onEtcd + "/takeover", at: onEtcd, measure: measureTakeOver, big: true,
	title: "From a leader that resigns, or is killed with a TTL of 2 s, to the next one, in another process",
	contenders: []contender{
		{name: "distlock Election", open: openElection, ours: true},
		{name: "concurrency.Election", open: openEtcdElection},
	},
}

// measureTakeOver measures resignations as hand-offs. The time after a kill is in TTLs, since it depends on
// little else: on how long ago the leader renewed.
func measureTakeOver(r *rig, c contender) (figures, error) {
	const atLeast = 4
	// A candidate waits for long, and etcd needs a tenth of a second until its watch delivers at once.
	resigned, err := measureHandoffAfter(r, c, 150*time.Millisecond)
	if err != nil {
		return nil, err
	}
	var after []float64
	for end := time.Now().Add(r.time); len(after) < atLeast || time.Now().Before(end); {
		d, err := killLeader(r, c)
		if err != nil {
			return nil, err
		}
		after = append(after, float64(d)/float64(takeOverTTL))
	}
	p50, _ := resigned.get("p50-ms")
	p99, _ := resigned.get("p99-ms")
	typical := median(after) // which sorts them
	return figures{
		{"resigned, p50-ms", p50}, {"p99-ms", p99},
		{"killed, p50-TTLs", typical}, {"most-TTLs", after[len(after)-1]}, {"kills", float64(len(after))},
	}, nil
}

// killLeader lets another process lead, kills it at some time after its last renewal, and returns how long
// it took until this process led.
func killLeader(r *rig, c contender) (time.Duration, error) {
	name := freshName()
	leader, err := startChild(job{Task: "lead", Contender: c.name, At: r.at, Addr: r.Addr(), Name: name, TTL: takeOverTTL})
	if err != nil {
		return 0, err
	}
	defer leader.kill()
	cl, err := c.open(r.Addr(), takeOverTTL)
	if err != nil {
		return 0, err
	}
	defer cl.close()
	ctx, cancel := context.WithTimeout(context.Background(), handoffTimeout)
	defer cancel()
	m, elected := cl.mutex(name), make(chan error, 1)
	go func() { elected <- m.lock(ctx) }()
	time.Sleep(takeOverTTL + rand.N(takeOverTTL))
	if len(elected) > 0 {
		return 0, fmt.Errorf("%s: two leaders at once, or none: %w", c.name, <-elected)
	}
	killed := time.Now()
	leader.kill()
	if err := <-elected; err != nil {
		return 0, err
	}
	took := time.Since(killed)
	return took, m.unlock()
}

// leadInChild leads until the process is killed.
func leadInChild(j job, cl client, p *peer) error {
	if err := cl.mutex(j.Name).lock(context.Background()); err != nil {
		return err
	}
	return p.ready()
}

// openElection uses distlock's elections.
func openElection(addr string, ttl time.Duration) (client, error) {
	c, err := distlockEtcd.open(addr, ttl)
	if err != nil {
		return nil, err
	}
	return electionClient{c.(*distlockClient)}, nil
}

type electionClient struct{ *distlockClient }

func (c electionClient) mutex(name string) mutex { return &election{Election: c.locks.Election(name)} }

// election leads between lock and unlock.
type election struct {
	*distlock.Election
	resign context.CancelFunc
	over   chan error
}

func (e *election) lock(ctx context.Context) error {
	campaign, resign := context.WithCancel(context.Background())
	elected := make(chan struct{})
	e.resign, e.over = resign, make(chan error, 1)
	go func() {
		e.over <- e.Lead(campaign, func(term context.Context) error {
			close(elected)
			<-term.Done()
			return nil
		})
	}()
	select {
	case <-elected:
		return nil
	case err := <-e.over:
		return err
	case <-ctx.Done():
		return errors.Join(ctx.Err(), e.unlock())
	}
}

func (e *election) unlock() error {
	e.resign()
	if err := <-e.over; !errors.Is(err, context.Canceled) || errors.Is(err, distlock.ErrLost) {
		return err
	}
	return nil
}

// openEtcdElection uses etcd's own Election with a session for each candidate.
func openEtcdElection(addr string, ttl time.Duration) (client, error) {
	c, err := newEtcdClient(addr)
	if err != nil {
		return nil, err
	}
	return etcdElections{c, ttl}, nil
}

type etcdElections struct {
	etcd *clientv3.Client
	ttl  time.Duration
}

func (e etcdElections) mutex(name string) mutex {
	s, err := newSession(e.etcd, e.ttl)
	if err != nil {
		return failing{err}
	}
	return etcdElection{concurrency.NewElection(s, name)}
}

func (e etcdElections) close() { e.etcd.Close() }

type etcdElection struct{ *concurrency.Election }

func (e etcdElection) lock(ctx context.Context) error { return e.Campaign(ctx, "candidate") }
func (e etcdElection) unlock() error                  { return e.Resign(context.Background()) }
