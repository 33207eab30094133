package etcdlock

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// What is too large for the server, or for the client already, never gets there: to ask
// again is no use.
func TestTooLarge(t *testing.T) {
	b := mustOpen(t, testserver.SharedEtcd(t).URL())
	for _, size := range []int{512 << 10, 1600 << 10, 3 << 20} {
		for _, queue := range []bool{false, true} {
			r := request("", driver.Exclusive)
			r.Queue = queue
			r.Meta = map[string]string{"note": strings.Repeat("x", size)}
			if size < 1<<20 {
				acquire(t, b, r)
				release(t, b, r)
				continue
			}
			refused(t, b, r, driver.ErrInvalid)
		}
	}
}

// The longest TTL of the core is granted, and one that overflows is refused at once.
func TestTooLong(t *testing.T) {
	b := mustOpen(t, testserver.SharedEtcd(t).URL())
	for _, fixed := range []bool{false, true} {
		r := request("", driver.Exclusive)
		r.TTL, r.Fixed = driver.MaxTTL, fixed
		acquire(t, b, r)
		longer := r.Hold
		longer.TTL = math.MaxInt64
		if err := b.Renew(t.Context(), []driver.Hold{longer})[0]; !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("fixed %v: renewed for %v: %v", fixed, longer.TTL, err)
		}
		next := request("", driver.Exclusive)
		next.TTL, next.Fixed = longer.TTL, fixed
		refused(t, b, next, driver.ErrInvalid)
		release(t, b, r)
	}
}

// A backend on a client that was closed asks in vain, and ends.
func TestClientThatWasClosed(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.SharedEtcd(t).Addr())
	b := backendOf(t, client, nil)
	r, _ := withOnLost(request("", driver.Exclusive))
	acquire(t, b, r)
	w := queued(request(r.Name, driver.Exclusive))
	refused(t, b, w, driver.ErrHeld)
	watch := armWatch(t, b, w)
	client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := b.Acquire(ctx, w); err == nil || driver.Final(err) {
		t.Errorf("acquire: %v", err)
	}
	if err := b.Renew(ctx, []driver.Hold{r.Hold})[0]; err == nil || driver.Final(err) {
		t.Errorf("renew: %v", err)
	}
	watch.Close()
	start := time.Now()
	b.Close()
	if took := time.Since(start); took > time.Minute {
		t.Errorf("Close took %v, which waits for %v", took, closeTimeout)
	}
}
