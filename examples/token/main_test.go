package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/examples/internal/storytest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// A host refreshes the token that it was refused, and does not lose what is stored.
func TestTheTokenIsRefreshed(t *testing.T) {
	exampletest.OnStores(t, func(t *testing.T, url string) {
		file := filepath.Join(t.TempDir(), "token")
		p := exampletest.Start(t, "DISTLOCK_URL="+url, "TOKEN_FILE="+file)
		for _, want := range []string{"refreshing", "done: <nil>"} {
			expect.Equal(t, p.Next(t), want)
		}
		p.End(t)
		expect.Equal(t, string(must.Get(os.ReadFile(file))(t)), "+")
	})
}

func TestWithoutALockTheFleetIsLoggedOut(t *testing.T) {
	if _, served, err := simulate(t.Context(), storytest.New(t), refresh); err != nil || served != 0 {
		t.Errorf("%d hosts are served, %v; it should have gone wrong", served, err)
	}
}

func TestUnderALockOneRefreshesForAll(t *testing.T) {
	refreshes, served, err := simulate(t.Context(), storytest.New(t), refreshLocked)
	if err != nil || refreshes != 1 || served != hosts {
		t.Errorf("%d refreshes, %d of %d hosts are served, %v", refreshes, served, hosts, err)
	}
}
