package connlock

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	lock "github.com/distlock/distlock/driver"
)

// A hold that was lost with its link is ErrLost from the first Release on, though the server does not
// answer: an unknown outcome before it would make ErrLost the word for a release that came true.
func TestReleaseOfALostHold(t *testing.T) {
	for name, noticed := range map[string]time.Duration{"noticed": time.Second, "not noticed yet": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, b := newFake(t)
				defer b.Close()
				r := fakeRequest("lock")
				if _, err := b.Acquire(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				f.set(true)
				time.Sleep(noticed)
				for try := range 3 {
					if err := b.Release(t.Context(), r.Hold); !errors.Is(err, lock.ErrLost) {
						t.Errorf("try %d: %v, want ErrLost", try, err)
					}
				}
			})
		})
	}
}
