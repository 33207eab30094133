package mysqllock

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// Who comes too late for a name that nobody has ever locked is refused as soon as for any other.
func TestFirstLocksOfANameDoNotWait(t *testing.T) {
	url, _ := freshDatabase(t, ForUpdate)
	var all []*Backend
	for range 4 {
		all = append(all, connect(t, url))
	}
	for i := range 20 {
		name := fmt.Sprint("first/", i)
		var wg sync.WaitGroup
		for _, b := range all {
			wg.Go(func() {
				began := time.Now()
				_, err := b.Acquire(t.Context(), request(name, time.Hour))
				if took := time.Since(began); took > 45*time.Second || err != nil && !errors.Is(err, driver.ErrHeld) { // InnoDB waits for 50 s
					t.Errorf("%s: after %v: %v", name, took, err)
				}
			})
		}
		wg.Wait()
	}
}
