// Package migrating has the code of docs/migrating.md. Each version of a program, before its move to
// distlock and after it, runs here beside the other one.
package migrating

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// version is a program that does some work under the lock "job".
type version func(ctx context.Context, work func(context.Context) error) error

// exclude checks that neither version works while the other one does, so that both may run during
// the move.
func exclude(t *testing.T, before, after version) {
	t.Helper()
	for order, v := range map[string][2]version{"after waits": {before, after}, "before waits": {after, before}} {
		t.Run(order, func(t *testing.T) {
			worked := 0
			work := func(context.Context) error { worked++; return nil }
			err := v[0](t.Context(), func(context.Context) error {
				impatient, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				if err := v[1](impatient, work); err == nil || worked > 0 {
					t.Errorf("the other version worked %d times, %v", worked, err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if err := v[1](t.Context(), work); err != nil || worked != 1 {
				t.Errorf("after the release: worked %d times, %v", worked, err)
			}
		})
	}
}
