package migrating

import (
	"context"
	"errors"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/etcdlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func beforeWithConcurrency(client *clientv3.Client) version {
	return func(ctx context.Context, work func(context.Context) error) error {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
		if err != nil {
			return err
		}
		defer session.Close()
		mutex := concurrency.NewMutex(session, "job")
		if err := mutex.Lock(ctx); err != nil {
			return err
		}
		defer mutex.Unlock(context.WithoutCancel(ctx))
		return work(ctx) // which should watch session.Done()
	}
}

func afterConcurrency(client *clientv3.Client) version {
	return func(ctx context.Context, work func(context.Context) error) error {
		return withEtcd(client, func(locks *distlock.Client) error {
			return locks.Mutex("job").Do(ctx, work)
		})
	}
}

func beforeWithElection(client *clientv3.Client) version {
	return func(ctx context.Context, lead func(context.Context) error) error {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
		if err != nil {
			return err
		}
		defer session.Close()
		election := concurrency.NewElection(session, "scheduler")
		if err := election.Campaign(ctx, "10.0.0.7:8080"); err != nil {
			return err
		}
		defer election.Resign(context.WithoutCancel(ctx))
		return lead(ctx) // which should watch session.Done()
	}
}

func afterElection(ctx context.Context, locks *distlock.Client, lead func(context.Context) error) error {
	election := locks.Election("scheduler", distlock.WithMeta(map[string]string{"address": "10.0.0.7:8080"}))
	return election.Lead(ctx, lead) // again and again, until ctx ends
}

// once leads for one term only.
func once(client *clientv3.Client) version {
	return func(ctx context.Context, lead func(context.Context) error) error {
		return withEtcd(client, func(locks *distlock.Client) error {
			over := errors.New("over")
			err := afterElection(ctx, locks, func(term context.Context) error {
				return errors.Join(lead(term), over)
			})
			if errors.Is(err, over) {
				return nil
			}
			return err
		})
	}
}

func withEtcd(client *clientv3.Client, f func(*distlock.Client) error) error {
	backend, err := etcdlock.New(client, nil)
	if err != nil {
		return err
	}
	locks, err := distlock.New(backend, nil)
	if err != nil {
		return err
	}
	defer locks.Close()
	return f(locks)
}

func newEtcd(t *testing.T) *clientv3.Client {
	server := testserver.SharedEtcd(t)
	client := must.Get(clientv3.New(clientv3.Config{Endpoints: []string{server.Addr()}, Context: t.Context()}))(t)
	t.Cleanup(func() { client.Close() })
	return client
}

func TestFromConcurrency(t *testing.T) {
	client := newEtcd(t)
	exclude(t, beforeWithConcurrency(client), afterConcurrency(client))
}

func TestFromElection(t *testing.T) {
	client := newEtcd(t)
	exclude(t, beforeWithElection(client), once(client))
}

// During the move both sides see who leads, and neither can read what the other one says about itself.
func TestObserversOfBothElections(t *testing.T) {
	client := newEtcd(t)
	err := withEtcd(client, func(locks *distlock.Client) error {
		err := beforeWithElection(client)(t.Context(), func(ctx context.Context) error {
			leader, err := locks.Election("scheduler").Leader(ctx)
			if err != nil || leader.Owner == "" || len(leader.Meta) > 0 {
				t.Errorf("a leader by the old program is seen as %+v, %v", leader, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		return once(client)(t.Context(), func(ctx context.Context) error {
			session, err := concurrency.NewSession(client)
			if err != nil {
				return err
			}
			defer session.Close()
			leader, err := concurrency.NewElection(session, "scheduler").Leader(ctx)
			if err != nil || len(leader.Kvs) == 0 || string(leader.Kvs[0].Value) == "10.0.0.7:8080" {
				t.Errorf("a leader by the new program is seen as %+v, %v", leader, err)
			}
			return nil
		})
	})
	expect.OK(t, err)
}
