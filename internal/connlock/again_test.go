package connlock

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	lock "github.com/distlock/distlock/driver"
)

// An answer that comes as the trust in a link ends is no grant: the driver may have closed the
// connection, and still hand over the answer.
func TestAnswerAtTheEndOfTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, b := newFake(t)
		defer b.Close()
		r := fakeRequest("lock")
		if _, err := b.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		time.Sleep(r.TTL / 2)
		f.late = true
		if g, err := b.Acquire(t.Context(), r); err == nil {
			t.Errorf("granted %+v on a connection that the driver has closed", g)
		}
		if err := b.Renew(t.Context(), []lock.Hold{r.Hold})[0]; !errors.Is(err, lock.ErrLost) {
			t.Errorf("Renew: %v, want ErrLost", err)
		}
	})
}
