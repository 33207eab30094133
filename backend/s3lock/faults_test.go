package s3lock

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/record/recordtest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// direct brings requests to a store without a network, so that virtual time goes on.
type direct struct {
	*fake
	delay time.Duration
}

func (d direct) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	if d.delay > 0 {
		time.Sleep(d.delay)
	}
	w := httptest.NewRecorder()
	defer func() {
		if recover() != nil {
			resp, err = nil, errors.New("connection reset")
		}
	}()
	in := r.Clone(r.Context())
	in.RequestURI, in.Host = r.URL.RequestURI(), r.URL.Host
	d.ServeHTTP(w, in)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

func (d direct) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: testserver.S3AccessKey, SecretAccessKey: testserver.S3SecretKey}, nil
}

// storeAt returns the store of a backend at d.
func storeAt(d direct) *store {
	base := url.URL{Scheme: "http", Host: "s3.test", Path: "/bucket"}
	return &store{
		client: &client{
			base: base, region: d.region, creds: d, http: &http.Client{Transport: d},
			signer: v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }),
		},
		Pace: record.Pace{Gap: record.MinGap}, prefix: "locks/", hashes: true,
	}
}

func backendAt(d direct) *record.Backend {
	return storeAt(d).backend()
}

// conflicts answers one request in five as S3 does where many write one object: with 409 or 503, or not at all, before or after
// the request took effect.
type conflicts struct {
	mu     sync.Mutex
	random *rand.Rand
}

func (c *conflicts) draw() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.Float64()
}

func (c *conflicts) instead(r *http.Request) *storeError {
	switch x := c.draw(); {
	case x < 0.05 && r.Method == http.MethodPut:
		return &storeError{status: http.StatusConflict, code: "ConditionalRequestConflict"}
	case x < 0.10:
		return &storeError{status: http.StatusServiceUnavailable, code: "SlowDown"}
	case x < 0.12:
		return &storeError{status: http.StatusInternalServerError, code: "InternalError"}
	case x < 0.15:
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (c *conflicts) lose(*http.Request) bool { return c.draw() < 0.05 }

// No two clients hold at once, and fences rise, whatever the store answers, and whatever becomes of messages, processes and
// clocks.
func TestStorm(t *testing.T) { storm(t, 1_500) }

func TestLongStorm(t *testing.T) { storm(t, 10_500) }

func storm(t *testing.T, holds int) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Second
		f, c := newFake(), &conflicts{random: rand.New(rand.NewPCG(1, 2))}
		f.instead, f.lose = c.instead, c.lose
		var nets []*recordtest.Faults
		s := &recordtest.Storm{
			Clients: 6, Names: 3, Holds: holds, TTL: ttl, Seed: 1, Rates: []float64{1, 1.004, 0.996},
			Open: func(client int, now func() time.Time) driver.Backend {
				net := recordtest.NewFaults(storeAt(direct{f, 0}), uint64(client))
				net.Delay, net.Late, net.Rate = ttl/50, 3*ttl, 0.1
				nets = append(nets, net)
				return record.New(net, driver.Caps{Name: "s3", Floor: true}).WithClock(now)
			},
		}
		s.Run(context.Background()).Judge(t, holds)
		for _, net := range nets {
			net.Wait()
		}
	})
}

// An ETag is a hash of the content, and none comes back although locks are taken and released as before.
func TestNoETagComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := backendAt(direct{f, 0})
		seen := map[string]bool{}
		r := request("job")
		r.Owner = "the same"
		for range 50 {
			locktest.Acquire(t, b, r)
			seen[f.object("locks/job").etag] = true
			expect.OK(t, errors.Join(b.Renew(t.Context(), []driver.Hold{r.Hold})...))
			seen[f.object("locks/job").etag] = true
			locktest.Release(t, b, r)
			seen[f.object("locks/job").etag] = true
			f.set(func() { // as if fences were not counted
				delete(f.objects, "locks/job")
			})
			b = backendAt(direct{f, 0})
		}
		expect.Equal(t, len(seen), 150, "ETags of 150 writes")
	})
}

// A 409 says that nothing was written, and not that another one holds, which the object tells.
func TestConflictIsNoHolder(t *testing.T) {
	f := newFake()
	url := f.serve(t)
	b, other := connect(t, url), connect(t, url)
	conflicts := func(instead func(r *http.Request) *storeError) { f.set(func() { f.instead = instead }) }
	always := func(r *http.Request) *storeError {
		if r.Method == http.MethodPut {
			return &storeError{status: http.StatusConflict, code: "ConditionalRequestConflict"}
		}
		return nil
	}
	r := request("job")
	conflicts(always)
	_, err := b.Acquire(t.Context(), r)
	if err == nil || errors.Is(err, driver.ErrHeld) || driver.Final(err) {
		t.Errorf("an attempt among conflicts: %v", err)
	}
	conflicts(nil)
	locktest.Acquire(t, b, r)
	conflicts(always)
	if err := errors.Join(b.Renew(t.Context(), []driver.Hold{r.Hold})...); err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("a renewal among conflicts: %v", err)
	}
	conflicts(nil)
	locktest.Release(t, b, r)
	locktest.Acquire(t, other, request("job"))
	conflicts(always)
	locktest.Held(t, b, request("job")) // which takes it for free until it is told
}

// A refusal because of who asks is no answer, and takes nothing.
func TestRefusalIsNoAnswer(t *testing.T) {
	f := newFake()
	b := connect(t, f.serve(t))
	r := request("job")
	locktest.Acquire(t, b, r)
	refuse := func(status int, code string) {
		f.set(func() {
			f.instead = func(*http.Request) *storeError { return &storeError{status: status, code: code} }
		})
	}
	for code, c := range map[string]struct {
		status int
		unsent bool
	}{"AccessDenied": {403, true}, "ExpiredToken": {400, true}, "NoSuchBucket": {404, true}, "SlowDown": {503, false}, "TooManyRequests": {429, false}} {
		refuse(c.status, code)
		for call, err := range map[string]error{
			"acquire": expect.Err(b.Acquire(t.Context(), request("another"))),
			"renew":   errors.Join(b.Renew(t.Context(), []driver.Hold{r.Hold})...),
			"release": b.Release(t.Context(), r.Hold),
		} {
			if err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrHeld) {
				t.Errorf("%s, %s: %v", code, call, err)
			}
			if call != "acquire" && errors.Is(err, driver.ErrUnsent) != c.unsent {
				t.Errorf("%s, %s: %v: unsent is %v", code, call, err, !c.unsent)
			}
			locktest.Says(t, err, code)
		}
	}
	f.set(func() { f.instead = nil })
	locktest.Release(t, b, r)
}

// All waiters of a client together read no more often than its bound, and a busy store is read less often.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := backendAt(direct{f, time.Millisecond})
		for i := range 300 {
			locktest.Acquire(t, b, request(fmt.Sprint("lock ", i)))
		}
		f.requests()
		locks := must.Get(distlock.New(backendAt(direct{f, time.Millisecond}), nil))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				_, err := locks.Mutex(fmt.Sprint("lock ", i)).Lock(ctx)
				expect.Be(t, err, context.DeadlineExceeded)
			})
		}
		time.Sleep(30 * time.Second)
		calm := f.requests()
		if n, most := calm[http.MethodGet], 300+int(30*time.Second/record.MinGap)+record.Burst; n > most || n < most/2 {
			t.Errorf("%d reads in 30 s, want up to %d", n, most)
		}
		var asked atomic.Int64
		f.set(func() {
			f.instead = func(*http.Request) *storeError {
				asked.Add(1)
				return &storeError{status: 503, code: "SlowDown"}
			}
		})
		wg.Wait()
		if n := int(asked.Load()); n > calm[http.MethodGet]/5 {
			t.Errorf("a busy store was asked %d times in 30 s, and one that is not %d times", n, calm[http.MethodGet])
		}
		expect.OK(t, locks.Close())
	})
}

// A holder waits for no turn of its process's waiters, also if it has to read what became of a write.
func TestHolderPassesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b, other := backendAt(direct{f, time.Millisecond}), backendAt(direct{f, time.Millisecond})
		r := request("job")
		locktest.Acquire(t, b, r)
		var wg sync.WaitGroup
		locktest.Acquire(t, other, request("held"))
		for range 100 {
			wg.Go(func() { expect.Be(t, expect.Err(b.Acquire(t.Context(), request("held"))), driver.ErrHeld) })
		}
		synctest.Wait()
		f.set(func() { f.lose = func(r *http.Request) bool { return r.Method == http.MethodPut } })
		began := time.Now()
		expect.OK(t, errors.Join(b.Renew(t.Context(), []driver.Hold{r.Hold})...))
		if took := time.Since(began); took > record.MinGap {
			t.Errorf("a renewal whose answer was lost took %v", took)
		}
		f.set(func() { f.lose = nil })
		wg.Wait()
	})
}

// TestRequests counts what locks cost.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.clock = time.Now
		open := func() *distlock.Client {
			return must.Get(distlock.New(backendAt(direct{f, 20 * time.Millisecond}), nil))(t)
		}
		holder, waiter := open(), open()
		const pairs = 100
		for range pairs {
			lease := must.Get(holder.Mutex("job").Lock(t.Context()))(t)
			expect.OK(t, lease.Unlock(t.Context()))
		}
		seen := f.requests()
		t.Logf("%d pairs: %v", pairs, seen)
		expect.Equal(t, seen[http.MethodPut], 2*pairs, "PUTs of uncontended pairs")
		expect.Equal(t, seen[http.MethodGet], 1, "GETs of uncontended pairs: the first")
		lease := must.Get(holder.Mutex("job").Lock(t.Context()))(t)
		f.requests()
		time.Sleep(time.Hour)
		seen = f.requests()
		t.Logf("an hour of holding: %v", seen)
		if n := seen[http.MethodPut]; n < 120 || n > 600 || seen[http.MethodGet] != 0 {
			t.Errorf("an hour of holding: %v", seen)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := waiter.Mutex("job").Lock(ctx)
		expect.Be(t, err, context.DeadlineExceeded)
		seen = f.requests()
		t.Logf("a minute of waiting, and of holding: %v", seen)
		if n := seen[http.MethodGet]; n < 10 || n > 60 {
			t.Errorf("a minute of waiting: %v", seen)
		}
		expect.OK(t, lease.Unlock(t.Context()))
		expect.OK(t, errors.Join(holder.Close(), waiter.Close()))
	})
}

// A gateway that answers with the ETag of the newest version and the content of the one before does not make a lock look free.
func TestTornReads(t *testing.T) {
	f := newFake()
	url := f.serve(t)
	holder, other, third := connect(t, url), connect(t, url), connect(t, url)
	r := request("job")
	locktest.Acquire(t, holder, r)
	locktest.Release(t, holder, r)
	free := f.object("locks/job")
	locktest.Acquire(t, holder, r)
	tears := 2
	f.set(func() {
		f.tear = func(string) *stored {
			if tears--; tears >= 0 {
				return &free
			}
			return nil
		}
	})
	locktest.Held(t, other, request("job"))
	f.set(func() { tears = 1000 })
	if _, err := third.Acquire(t.Context(), request("job")); err == nil || driver.Final(err) || !errors.Is(err, driver.ErrUnsent) {
		t.Errorf("content and ETag of two versions: %v", err)
	}
	f.set(func() { tears = 0 })
	locktest.Release(t, holder, r)
}

// With keys of a KMS an ETag is no hash, also if the bucket's encryption changes while it is in use.
func TestETagsThatAreNoHashes(t *testing.T) {
	f := newFake()
	url := f.serve(t)
	before := connect(t, url)
	f.set(func() { f.kms = true })
	for _, b := range []driver.Backend{before, connect(t, url)} {
		r := request("job")
		locktest.Acquire(t, b, r)
		locktest.Held(t, connect(t, url), request("job"))
		locktest.Release(t, b, r)
	}
}

// Fences rise although the objects of free locks are deleted.
func TestFencesAfterADeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, last := newFake(), uint64(0)
		for range 5 {
			b := backendAt(direct{f, 0})
			for range 100 {
				r := request("job")
				if g := locktest.Acquire(t, b, r); g.Fence <= last {
					t.Fatalf("fence %d after %d", g.Fence, last)
				} else {
					last = g.Fence
				}
				locktest.Release(t, b, r)
			}
			f.set(func() { delete(f.objects, "locks/job") })
			time.Sleep(time.Second) // the store's clock counts seconds
		}
	})
}

var holdsFlag = flag.Int("storm.holds", 5_000, "holds of the storm on a real server")

// TestLongStormOnARealServer runs a storm over a network that loses, delays and repeats, before a server that tears reads.
func TestLongStormOnARealServer(t *testing.T) {
	const ttl = time.Second
	holds := *holdsFlag
	url := urlOf(testserver.S3(t, testserver.S3Options{Sidecar: true}).Endpoint())
	var nets []*recordtest.Faults
	s := &recordtest.Storm{
		Clients: 600, Names: 300, Holds: holds, TTL: ttl, Seed: uint64(time.Now().UnixNano()), Rates: []float64{1, 1.004, 0.996},
		Open: func(client int, now func() time.Time) driver.Backend {
			u := must.Get(driver.ParseURL(url))(t)
			s := must.Get(openStore(t.Context(), u))(t)
			t.Cleanup(func() { expect.OK(t, s.Close()) })
			net := recordtest.NewFaults(s, uint64(client))
			net.Delay, net.Late, net.Rate = ttl/50, 3*ttl, 0.1
			nets = append(nets, net)
			return record.New(net, driver.Caps{Name: "s3", Floor: true}).WithClock(now)
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(holds)*80*time.Millisecond)
	defer cancel()
	s.Run(ctx).Judge(t, holds/recordtest.Few)
	for _, net := range nets {
		net.Wait()
	}
}
