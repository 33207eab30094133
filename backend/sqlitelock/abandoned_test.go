package sqlitelock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// A renewal whose context ends is unknown for all its holds, also if the writer finds out more at that moment: the
// transaction may still be rolled back.
func TestAbandonedRenewals(t *testing.T) {
	t.Parallel()
	b := connect(t, lockFile(t))
	var holds []driver.Hold
	for i := range renewBatch {
		h := driver.Hold{Name: fmt.Sprint("job ", i), Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Hour}
		if _, err := b.Acquire(t.Context(), driver.Request{Hold: h, Fences: 1}); err != nil {
			t.Fatal(err)
		}
		holds = append(holds, h)
	}
	began := time.Now()
	if err := errors.Join(b.Renew(t.Context(), holds)...); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	abandoned := 0
	for range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*took/2))
		errs := b.Renew(ctx, holds)
		cancel()
		for i, err := range errs {
			if (err == nil) != (errs[0] == nil) || err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("one transaction has outcomes %v and, for hold %d, %v", errs[0], i, err)
			}
		}
		if errs[0] != nil {
			abandoned++
		}
	}
	if abandoned == 0 {
		t.Error("no context ended in time")
	}
}
