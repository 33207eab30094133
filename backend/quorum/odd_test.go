package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
)

// odd is a member with replaced answers.
type odd struct {
	*memlock.Backend
	caps    func(*driver.Caps)
	renew   func(driver.Hold) error
	release func(driver.Hold) error
}

func (o *odd) Caps() driver.Caps {
	c := o.Backend.Caps()
	c.Queueing = driver.QueueNever
	if o.caps != nil {
		o.caps(&c)
	}
	return c
}

func (o *odd) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := o.Backend.Renew(ctx, holds)
	for i, h := range holds {
		if o.renew != nil {
			if err := o.renew(h); err != nil {
				errs[i] = err
			}
		}
	}
	return errs
}

func (o *odd) Release(ctx context.Context, h driver.Hold) error {
	if o.release != nil {
		if err := o.release(h); err != nil {
			return err
		}
	}
	return o.Backend.Release(ctx, h)
}

// odds is a quorum of odd members.
func odds(t testing.TB, c *cluster, change func(*odd)) *quorum.Backend {
	var members []driver.Backend
	for _, s := range c.stores {
		o := &odd{Backend: s.Connect()}
		change(o)
		members = append(members, o)
	}
	b, err := quorum.New(members, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// A member that granted, and then refuses to raise its counter, keeps no vote.
func TestRefusedRaiseLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		b := odds(t, c, func(o *odd) {
			o.renew = func(h driver.Hold) error {
				if h.Floor > 0 {
					return fmt.Errorf("%w: no more fences", driver.ErrInvalid)
				}
				return nil
			}
		})
		ahead := request(driver.Exclusive)
		if _, err := c.stores[0].Connect().Acquire(t.Context(), ahead); err != nil {
			t.Fatal(err)
		}
		if err := c.stores[0].Connect().Release(t.Context(), ahead.Hold); err != nil {
			t.Fatal(err)
		}
		r := request(driver.Exclusive)
		if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("acquire: %v", err)
		}
		c.leavesNothing(t, r.Hold)
	})
}

// A member that is back, and silent again before all releases reached it, is retried slowly.
func TestSweepIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		var tries, left atomic.Int64
		b := odds(t, c, func(o *odd) {
			o.release = func(driver.Hold) error {
				time.Sleep(time.Microsecond)
				if tries.Add(1); left.Add(-1) < 0 {
					return errReset
				}
				return nil
			}
		})
		for range 100 {
			r := request(driver.Exclusive)
			r.Name = r.Owner
			take(t, b, r)
			b.Release(t.Context(), r.Hold)
		}
		left.Store(20)
		time.Sleep(time.Second)
		tries.Store(0)
		time.Sleep(time.Second)
		if n := tries.Load(); n > 10 {
			t.Errorf("%d tries in a second", n)
		}
	})
}

// A refused downgrade changes nothing: lost votes are still won back.
func TestRefusedDowngradeChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		b := odds(t, c, func(o *odd) { o.caps = func(c *driver.Caps) { c.Downgrade = false } })
		r := request(driver.Write)
		take(t, b, r)
		read := r
		read.Mode = driver.Read
		if _, err := b.Acquire(t.Context(), read); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("downgrade: %v", err)
		}
		synctest.Wait()
		c.stores[0].Connect().Release(t.Context(), r.Hold)
		renewed(t, b, r)
		renewed(t, b, r)
		if n := c.votes(r.Hold); n != 3 {
			t.Errorf("%d votes after one was lost, want 3", n)
		}
	})
}
