package redislock

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// heldQueue opens a backend, and takes a name that others then wait for.
func heldQueue(t *testing.T, layout Layout) (*Backend, *redis.Client, driver.Request) {
	srv := testserver.SharedRedis(t)
	b, c := openOwn(t, srv.Addr(), Options{Layout: layout}), raw(t, srv.Addr())
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	return b, c, r
}

// enqueued makes a request that is refused and queued.
func enqueued(t *testing.T, b *Backend, name string) driver.Request {
	t.Helper()
	r := request(name, driver.Exclusive)
	r.Queue = true
	r.TTL -= 10 * time.Millisecond // a place lasts up to a millisecond longer
	refused(t, b, r, driver.ErrHeld)
	return r
}

func eachLayout(t *testing.T, test func(t *testing.T, layout Layout)) {
	for _, layout := range []Layout{String, Redisson} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			test(t, layout)
		})
	}
}

func TestQueueOnTheWire(t *testing.T) {
	token := "redisson_lock_token:{NAME} string # no TTL"
	note := "{NAME}:OWNER:distlock string +OWNER  # 30s"
	want := map[Layout][][]string{
		String: {{
			"NAME string HOLDER  # 30s",
			"distlock_line:{NAME} list OWNER 30s",
			"distlock_places:{NAME} zset OWNER:30s 30s",
		}, {"NAME string OWNER  # 30s"}, nil},
		Redisson: {{
			"NAME hash HOLDER:1=1 30s",
			"distlock_places:{NAME} zset OWNER:1:30s 40s",
			"redisson_lock_queue:{NAME} list OWNER:1 no TTL",
			"redisson_lock_timeout:{NAME} zset OWNER:1:40s no TTL",
			token, "{NAME}:HOLDER:distlock string +HOLDER  # 30s",
		}, {"NAME hash OWNER:1=1 30s", note, token}, {token}},
	}
	eachLayout(t, func(t *testing.T, layout Layout) {
		b, c, r := heldQueue(t, layout)
		w := enqueued(t, b, r.Name)
		own := b.layout.Mode(driver.Exclusive).ChannelFor(r.Name, w)
		m := listen(t, c, own)
		for range 2 { // asking again changes nothing
			refused(t, b, w, driver.ErrHeld)
			expect(t, withHolder(dump(t, c, w), r), want[layout][0]...)
		}
		release(t, b, r)
		m.next(own, map[Layout]string{String: w.Owner, Redisson: "0"}[layout])
		for range 2 { // nor does it for the holder
			acquire(t, b, w)
			expect(t, dump(t, c, w), want[layout][1]...)
		}
		release(t, b, w)
		expect(t, dump(t, c, w), want[layout][2]...)
	})
}

// withHolder names the holder in a dump for another.
func withHolder(lines []string, holder driver.Request) []string {
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], holder.Owner, "HOLDER")
	}
	slices.Sort(lines)
	return lines
}

// A queue that lost a key, by eviction or by hand, is repaired by its waiters: each has one place,
// which expires on time.
func TestQueueLosesAKey(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		keys := layouts.String("", false).QueueKeys
		if layout == Redisson {
			keys = layouts.Redisson("", false).QueueKeys
		}
		for i, lost := range keys("NAME") {
			b, c, r := heldQueue(t, layout)
			var line []driver.Request
			var written []string
			for range 3 {
				w := enqueued(t, b, r.Name)
				line, written = append(line, w), append(written, b.layout.Mode(w.Mode).Field(w.Owner))
			}
			c.Del(t.Context(), keys(r.Name)[i])
			for range 2 {
				for _, w := range line {
					refused(t, b, w, driver.ErrHeld)
				}
			}
			if got := c.LRange(t.Context(), keys(r.Name)[0], 0, -1).Val(); !slices.Equal(got, written) {
				t.Errorf("without %s the queue is %v, want %v", lost, got, written)
			}
			for _, scores := range keys(r.Name)[1:] {
				for _, z := range c.ZRangeWithScores(t.Context(), scores, 0, -1).Val() {
					if left := time.Until(time.UnixMilli(int64(z.Score))); left > time.Minute {
						t.Errorf("without %s a place in %s ends in %v", lost, scores, left)
					}
				}
			}
		}
	})
}

// awaits requests r as the core does, retrying no later than the refusal says, and returns the
// time of the grant.
func awaits(t *testing.T, b *Backend, r driver.Request) (in time.Time) {
	t.Helper()
	for deadline := time.Now().Add(tooLong); time.Now().Before(deadline); {
		_, err := b.Acquire(t.Context(), r)
		var held *driver.HeldError
		if err == nil {
			return time.Now()
		}
		if !errors.As(err, &held) {
			t.Fatal(err)
		}
		time.Sleep(min(max(held.Retry, time.Millisecond), tooLong))
	}
	t.Fatal("never let in")
	return in
}

// A process that dies while it waits delays the waiters behind it until its place expires, but no
// longer. It is cut off, so that it can't leave the queue.
func TestDeadWaiterAnywhereInTheQueue(t *testing.T) {
	const life = 600 * time.Millisecond
	eachLayout(t, func(t *testing.T, layout Layout) {
		srv := testserver.SharedRedis(t)
		for dead := range 3 {
			b, _, r := heldQueue(t, layout)
			p := faultproxy.New(t, srv.Addr())
			gone := openOwn(t, p.Addr(), Options{Layout: layout})
			var waiters []driver.Request
			var died time.Time
			for i := range 3 {
				by, w := b, request(r.Name, driver.Exclusive)
				w.TTL = time.Hour
				if i == dead {
					by, w.TTL, died = gone, life, time.Now()
				}
				w.Queue = true
				refused(t, by, w, driver.ErrHeld)
				waiters = append(waiters, w)
			}
			p.Silence()
			release(t, b, r)
			for i, w := range waiters {
				if i == dead {
					continue
				}
				in := awaits(t, b, w).Sub(died)
				if i > dead && in < life {
					t.Errorf("dead at %d: %d passed it after %v", dead, i, in)
				}
				release(t, b, w)
			}
		}
	})
}

// A refusal tells a waiter to retry when the turn of the first place ends, to the millisecond by the
// server's clock.
func TestRetryIsTheEndOfTheFirstTurn(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		srv := testserver.SharedRedis(t)
		b, c := openOwn(t, srv.Addr(), Options{Layout: layout}), raw(t, srv.Addr())
		var r, first, second driver.Request
		held := refusedInTurn(t, b, func() driver.Request {
			r = request("", driver.Exclusive)
			acquire(t, b, r)
			first = request(r.Name, driver.Exclusive)
			first.Queue, first.TTL = true, time.Hour
			refused(t, b, first, driver.ErrHeld)
			second = enqueued(t, b, r.Name)
			release(t, b, r)
			return second
		})
		if held.Retry > driver.TurnLife+2*time.Millisecond || held.Retry <= 0 {
			t.Errorf("refused with %v, want the end of the first turn", held)
		}
		// When it expires, Inspect and all requests ignore the first waiter.
		member := b.layout.Mode(driver.Exclusive).Field(first.Owner)
		c.ZAdd(t.Context(), b.layout.QueueKeys(r.Name)[1], zOf(member, 1))
		info, err := b.Inspect(t.Context(), r.Name)
		if err != nil || len(info.Waiters) != 1 || info.Waiters[0].Owner != second.Owner {
			t.Errorf("inspect: %+v, %v", info, err)
		}
		if err := b.Release(t.Context(), first.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("a place that has ended is left: %v", err)
		}
		acquire(t, b, second)
	})
}

// Several processes get in one by one, as they came.
func TestQueueOverProcesses(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		srv := testserver.SharedRedis(t)
		b, c, r := heldQueue(t, layout)
		longTurns(t, b)
		var waiters []driver.Request
		var backends []*Backend
		var watches []driver.Watch
		for i := range 9 {
			o := longTurns(t, openers[i%len(openers)].open(t, srv.Addr(), Options{Layout: layout}))
			w := enqueued(t, o, r.Name)
			waiters, backends, watches = append(waiters, w), append(backends, o), append(watches, armWatch(t, o, w))
		}
		held := append([]driver.Request{r}, waiters...)
		for i, w := range waiters {
			release(t, b, held[i])
			signalled(t, watches[i])
			for k := i + 1; k < len(waiters); k++ {
				refused(t, backends[k], waiters[k], driver.ErrHeld)
				if len(watches[k].Ready) > 0 {
					t.Errorf("release %d woke %d", i, k)
				}
			}
			acquire(t, backends[i], w)
			watches[i].Close()
		}
		release(t, b, waiters[len(waiters)-1])
		if left := dump(t, c, r); slices.ContainsFunc(left, func(s string) bool { return !isToken(s) }) {
			t.Errorf("left: %v", left)
		}
	})
}

// The waiters of a client share a subscription, and a message wakes only the waiter that it names.
func TestQueuedWaitersShareASubscription(t *testing.T) {
	eachOpener(t, func(t *testing.T, o opener) {
		srv := testserver.Redis(t) // its own: the commands of all clients are counted
		b, owners := longTurns(t, o.open(t, srv.Addr(), Options{})), driver.NewOwners()
		wait := func(name string) (driver.Request, driver.Watch) {
			r := request(name, driver.Exclusive)
			r.Queue, r.Owner = true, owners.New()
			w := armWatch(t, b, r)
			refused(t, b, r, driver.ErrHeld)
			return r, w
		}
		holder := request("", driver.Exclusive)
		acquire(t, b, holder)
		_, first := wait(holder.Name)
		gone, second := wait(holder.Name)
		third, last := wait(holder.Name)
		if signals([]driver.Watch{first, second, last}) > 0 {
			t.Error("a waiter was woken while nothing happened")
		}
		usage(t, srv)
		release(t, b, gone)
		second.Close()
		release(t, b, holder)
		signalled(t, first)
		first.Close()
		if signals([]driver.Watch{last}) > 0 {
			t.Error("a release woke the second in the queue")
		}
		_, w := wait(holder.Name) // it has the subscription that is there
		w.Close()
		last.Close()
		_, others := usage(t, srv)
		if n := others["subscribe"]; n > 0 {
			t.Errorf("%d commands for subscriptions, want none", n)
		}
		release(t, b, third)
	})
}

// The commands of Java's fair lock, for a queue that we have a place in too, are written here by
// commands of its own.

func zOf(member string, score float64) redis.Z { return redis.Z{Score: score, Member: member} }

func isToken(line string) bool { return strings.HasPrefix(line, "redisson_lock_token:") }

// javaEnd returns the time at which Java considers a queued field dead.
func javaEnd(t *testing.T, c *redis.Client, name, field string) time.Time {
	t.Helper()
	return scoreOf(t, c, layouts.Redisson("", false).QueueKeys(name)[2], field)
}

func TestQueueBehindJava(t *testing.T) {
	b, c, r := heldQueue(t, Redisson)
	queueJava(t, c, r.Name, javaField, 4*time.Minute)
	w := enqueued(t, b, r.Name)
	// Java takes its 5 minutes off when it gets in.
	if behind := javaEnd(t, c, r.Name, layouts.Field(w.Owner)).Sub(javaEnd(t, c, r.Name, javaField)); behind < 39*time.Second || behind > 41*time.Second {
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
	c.LPop(t.Context(), layouts.Redisson("", false).QueueKeys(r.Name)[0])
	c.ZRem(t.Context(), layouts.Redisson("", false).QueueKeys(r.Name)[2], javaField)
	refused(t, b, request(r.Name, driver.Exclusive), driver.ErrHeld)
	acquire(t, b, w)
}

// A Java waiter behind ours counts from our place, and is notified when its turn comes.
func TestQueueBeforeJava(t *testing.T) {
	b, c, r := heldQueue(t, Redisson)
	came := time.Now()
	w := enqueued(t, b, r.Name)
	end := javaEnd(t, c, r.Name, layouts.Field(w.Owner))
	if end.Sub(came) < 39*time.Second || time.Until(end) > 41*time.Second {
		t.Errorf("first in the queue our place ends in %v for Java", time.Until(end))
	}
	queueJava(t, c, r.Name, javaField, 5*time.Minute)
	release(t, b, r)
	acquire(t, b, w)
	own := layouts.LockChannel(r.Name) + ":" + javaField
	m := listen(t, c, own)
	release(t, b, w)
	m.next(own, "0")
}

// Java has no other way to see that we have gone than by our score: it follows the
// attempts, and does not add up over ours.
func TestScoresOfOursDoNotAddUp(t *testing.T) {
	b, c, r := heldQueue(t, Redisson)
	for range 5 {
		w := enqueued(t, b, r.Name)
		if left := time.Until(javaEnd(t, c, w.Name, layouts.Field(w.Owner))); left > 41*time.Second {
			t.Errorf("our place ends in %v for Java", left)
		}
	}
}

// A place of ours that Java dropped while it lived is the first again.
func TestPlaceThatJavaDropped(t *testing.T) {
	b, c, r := heldQueue(t, Redisson)
	w := enqueued(t, b, r.Name)
	queueJava(t, c, r.Name, javaField, time.Minute)
	c.LPop(t.Context(), layouts.Redisson("", false).QueueKeys(r.Name)[0])
	c.ZRem(t.Context(), layouts.Redisson("", false).QueueKeys(r.Name)[2], layouts.Field(w.Owner))
	release(t, b, r)
	acquire(t, b, w)
	expect(t, dump(t, c, w),
		"NAME hash OWNER:1=1 30s", "{NAME}:OWNER:distlock string +OWNER  # 30s", "redisson_lock_token:{NAME} string # no TTL",
		"redisson_lock_queue:{NAME} list "+javaField+" no TTL", "redisson_lock_timeout:{NAME} zset "+javaField+":60s no TTL")
}

// Java never drops one without a score, and would wait for ever.
func TestJavaHeadWithoutAScore(t *testing.T) {
	b, c, r := heldQueue(t, Redisson)
	c.RPush(t.Context(), layouts.Redisson("", false).QueueKeys(r.Name)[0], javaField)
	release(t, b, r)
	var held *driver.HeldError
	err := refused(t, b, r, driver.ErrHeld)
	if !errors.As(err, &held) || held.Retry <= 0 || held.Retry > 31*time.Second {
		t.Errorf("refused with %v, want an end within 30 s", err)
	}
	c.ZAdd(t.Context(), layouts.Redisson("", false).QueueKeys(r.Name)[2], zOf(javaField, 1))
	acquire(t, b, r)
}

// Force unlock of a waiter, as Inspect shows it.
func TestJavaWaiterIsTakenOut(t *testing.T) {
	b, c, r := heldQueue(t, Redisson)
	queueJava(t, c, r.Name, javaField, time.Minute)
	w := enqueued(t, b, r.Name)
	release(t, b, r)
	watch := armWatch(t, b, w)
	defer watch.Close()
	java := r.Hold
	java.Owner = javaField
	must.OK(t, b.Release(t.Context(), java))
	signalled(t, watch)
	acquire(t, b, w)
}

// An Owner that has a place, of an attempt without an answer, may take the lock beside the queue, without an answer too. Its release ends
// both.
func TestReleaseEndsThePlaceToo(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write} {
		b, c := stringOf(t)
		holder, waiter := request("", mode), driver.Request{}
		acquire(t, b, holder)
		waiter = request(holder.Name, mode)
		waiter.Queue = true
		refused(t, b, waiter, driver.ErrHeld)
		must.OK(t, c.Del(t.Context(), holder.Name).Err())
		note := waiter.Owner + "  -1000"
		must.OK(t, c.Set(t.Context(), holder.Name, note, time.Minute).Err())
		release(t, b, waiter)
		if waiters := must.Get(b.Inspect(t.Context(), holder.Name))(t).Waiters; len(waiters) > 0 {
			t.Errorf("%v: a released Owner has a place: %+v", mode, waiters)
		}
		acquire(t, b, request(holder.Name, mode))
	}
}
