package redislock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/redis/go-redis/v9"
)

// The commands of Java's fair lock, for a queue that we have a place in too, are written here by
// commands of its own.

func zOf(member string, score float64) redis.Z { return redis.Z{Score: score, Member: member} }

func isToken(line string) bool { return strings.HasPrefix(line, "redisson_lock_token:") }

// javaEnd is when Java takes the place of a field in a line for dead.
func javaEnd(t *testing.T, c *redis.Client, name, field string) time.Time {
	t.Helper()
	return scoreOf(t, c, javaQueueKeys(name)[2], field)
}

func TestLineBehindJava(t *testing.T) {
	b, c, r := heldLine(t, Redisson)
	queueJava(t, c, r.Name, javaField, 4*time.Minute)
	w := stands(t, b, r.Name)
	// Java takes its 5 minutes off when it gets in.
	if behind := javaEnd(t, c, r.Name, field(w.Owner)).Sub(javaEnd(t, c, r.Name, javaField)); behind < 39*time.Second || behind > 41*time.Second {
		t.Errorf("our place ends %v after Java's", behind)
	}
	release(t, b, r)
	refused(t, b, w, driver.ErrHeld)
	refused(t, b, request(r.Name, driver.Exclusive), driver.ErrHeld)
	info, err := b.Inspect(t.Context(), r.Name)
	if err != nil || len(info.Waiters) != 2 || info.Waiters[0].Owner != javaField || info.Waiters[1].Owner != w.Owner {
		t.Errorf("inspect: %+v, %v", info, err)
	}
	// Java gets in, and unlocks.
	c.LPop(t.Context(), javaQueueKeys(r.Name)[0])
	c.ZRem(t.Context(), javaQueueKeys(r.Name)[2], javaField)
	refused(t, b, request(r.Name, driver.Exclusive), driver.ErrHeld)
	acquire(t, b, w)
}

// One that comes behind ours counts from our place, and is told when its turn comes.
func TestLineBeforeJava(t *testing.T) {
	b, c, r := heldLine(t, Redisson)
	came := time.Now()
	w := stands(t, b, r.Name)
	end := javaEnd(t, c, r.Name, field(w.Owner))
	if end.Sub(came) < 39*time.Second || time.Until(end) > 41*time.Second {
		t.Errorf("first in line our place ends in %v for Java", time.Until(end))
	}
	queueJava(t, c, r.Name, javaField, 5*time.Minute)
	release(t, b, r)
	acquire(t, b, w)
	own := lockChannel(r.Name) + ":" + javaField
	m := listen(t, c, own)
	release(t, b, w)
	m.next(own, "0")
}

// Java has no other way to see that we have gone than by our score: it follows the
// attempts, and does not add up over ours.
func TestScoresOfOursDoNotAddUp(t *testing.T) {
	b, c, r := heldLine(t, Redisson)
	for range 5 {
		w := stands(t, b, r.Name)
		if left := time.Until(javaEnd(t, c, w.Name, field(w.Owner))); left > 41*time.Second {
			t.Errorf("our place ends in %v for Java", left)
		}
	}
}

// A place of ours that Java dropped while it lived is the first again.
func TestPlaceThatJavaDropped(t *testing.T) {
	b, c, r := heldLine(t, Redisson)
	w := stands(t, b, r.Name)
	queueJava(t, c, r.Name, javaField, time.Minute)
	c.LPop(t.Context(), javaQueueKeys(r.Name)[0])
	c.ZRem(t.Context(), javaQueueKeys(r.Name)[2], field(w.Owner))
	release(t, b, r)
	acquire(t, b, w)
	expect(t, dump(t, c, w),
		"NAME hash OWNER:1=1 30s", "{NAME}:OWNER:distlock string +OWNER  # 30s", "redisson_lock_token:{NAME} string # no TTL",
		"redisson_lock_queue:{NAME} list "+javaField+" no TTL", "redisson_lock_timeout:{NAME} zset "+javaField+":60s no TTL")
}

// Java never drops one without a score, and would wait for ever.
func TestJavaHeadWithoutAScore(t *testing.T) {
	b, c, r := heldLine(t, Redisson)
	c.RPush(t.Context(), javaQueueKeys(r.Name)[0], javaField)
	release(t, b, r)
	var held *driver.HeldError
	err := refused(t, b, r, driver.ErrHeld)
	if !errors.As(err, &held) || held.Retry <= 0 || held.Retry > 31*time.Second {
		t.Errorf("refused with %v, want an end within 30 s", err)
	}
	c.ZAdd(t.Context(), javaQueueKeys(r.Name)[2], zOf(javaField, 1))
	acquire(t, b, r)
}

// Force unlock of a waiter, as Inspect shows it.
func TestJavaWaiterIsTakenOut(t *testing.T) {
	b, c, r := heldLine(t, Redisson)
	queueJava(t, c, r.Name, javaField, time.Minute)
	w := stands(t, b, r.Name)
	release(t, b, r)
	watch := armWatch(t, b, w)
	defer watch.Close()
	java := r.Hold
	java.Owner = javaField
	if err := b.Release(t.Context(), java); err != nil {
		t.Fatal(err)
	}
	signalled(t, watch)
	acquire(t, b, w)
}
