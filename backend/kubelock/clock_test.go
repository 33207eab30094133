package kubelock

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A process that comes after a holder died has the lock soon after its TTL by the server's clock. Where a proxy has a clock of its
// own, or the login may write nothing, holds end only for those who watch them.
func TestServerEndsAHold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ahead, proxy time.Duration
		query        string
		fault        func(http.ResponseWriter, *http.Request) bool
		late         time.Duration
	}{
		"a server": {late: record.Late}, "a server whose clock is ahead": {ahead: 50 * time.Hour, late: record.Late},
		"a proxy whose clock is ahead": {proxy: time.Hour}, "a proxy whose clock is behind": {proxy: -5 * time.Second},
		"without":      {query: "&clock=off"},
		"reads only":   {fault: answers(http.MethodPost, 403, "no")},
		"no dry runs":  {fault: answers(http.MethodPost, 400, "a webhook does not support dry runs")},
		"no namespace": {fault: answers(http.MethodPost, 404, "no such namespace")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.ahead, f.proxy = c.ahead, c.proxy
			f.setFault(c.fault)
			dead := open(t, f.url()+c.query)
			expect.Equal(t, dead.Caps().Late, c.late, "Late")
			f.setFault(nil)
			r := request("a")
			locktest.Acquire(t, dead, r)
			forward := func(d time.Duration) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.ahead += d
			}
			forward(r.TTL)
			locktest.Held(t, open(t, f.url()+c.query), request("a"))
			forward(record.Late + r.TTL/100)
			if c.late > 0 {
				locktest.Acquire(t, open(t, f.url()+c.query), request("a"))
			} else {
				f.setFault(c.fault)
				b := open(t, f.url()+c.query)
				f.setFault(nil)
				locktest.Held(t, b, request("a"))
			}
		})
	}
}

// A Lease that waits for its finalizers is not granted, since it is going to vanish. Its holder keeps it until then.
func TestLeaseThatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b, r := open(t, f.url()), request("a")
	locktest.Acquire(t, b, r)
	change := func(of func(metadata map[string]any)) {
		f.mu.Lock()
		defer f.mu.Unlock()
		of(f.leases["a"]["metadata"].(map[string]any))
	}
	change(func(m map[string]any) {
		m["deletionTimestamp"], m["finalizers"], m["generateName"] = "2026-01-01T00:00:00Z", []string{"example.com/x"}, "gen-"
		m["resourceVersion"] = "999"
	})
	f.mu.Lock()
	f.version = 999
	f.mu.Unlock()
	must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
	change(func(m map[string]any) { m["deletionTimestamp"] = "2026-01-01T00:00:00Z" })
	locktest.Release(t, b, r)
	change(func(m map[string]any) {
		expect.Equal(t, m["generateName"], any("gen-"), "generateName, which others need")
		m["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	})
	_, err := open(t, f.url()).Acquire(t.Context(), request("a"))
	locktest.Fails(t, "a Lease that is being deleted", err, false, "the Lease a is being deleted", `"example.com/x"`)
	expect.Be(t, err, driver.ErrUnsent)
}

// A real server: it says how old a Lease is, and keeps one that is being deleted until its finalizers are gone.
func TestLongServerEndsAHold(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedKube(t)
	namespace := srv.Namespace()
	dead, r := open(t, srv.URL(namespace)), request("a")
	expect.Equal(t, dead.Caps().Late, record.Late, "Late")
	r.TTL = time.Second
	locktest.Acquire(t, dead, r)
	path := "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases/a"
	var granted, younger lease
	srv.Do(http.MethodGet, path, nil, &granted)
	time.Sleep(2 * time.Second)
	must.OK(t, dead.Renew(t.Context(), []driver.Hold{r.Hold})[0])
	srv.Do(http.MethodGet, path, nil, &younger)
	if was, is := granted.Metadata.written(), younger.Metadata.written(); !is.After(was) {
		t.Errorf("a renewal is of %v, and the grant of %v", is, was)
	}
	renewed := time.Now()
	for ; ; time.Sleep(100 * time.Millisecond) {
		_, err := open(t, srv.URL(namespace)).Acquire(t.Context(), request("a"))
		if err == nil {
			break
		}
		expect.Be(t, err, driver.ErrHeld)
	}
	if passed := time.Since(renewed); passed < r.TTL {
		t.Errorf("granted %v after the last renewal", passed)
	}
	var l object
	srv.Do(http.MethodGet, path, nil, &l)
	l["metadata"].(map[string]any)["finalizers"] = []string{"example.com/x"}
	l["spec"].(map[string]any)["holderIdentity"] = ""
	srv.Do(http.MethodPut, path, l, nil)
	srv.Do(http.MethodDelete, path, nil, nil)
	_, err := open(t, srv.URL(namespace)).Acquire(t.Context(), request("a"))
	if err == nil || !strings.Contains(err.Error(), "is being deleted") {
		t.Errorf("a Lease that is being deleted: %v", err)
	}
}
