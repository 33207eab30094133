package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/examples/internal/story"
	"github.com/distlock/distlock/examples/internal/storytest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// A host refreshes the token that it was refused.
func TestTheTokenIsRefreshed(t *testing.T) {
	exampletest.OnStores(t, func(t *testing.T, url string) {
		file := filepath.Join(t.TempDir(), "token")
		must.OK(t, os.WriteFile(file, []byte("old"), 0o600))
		p := exampletest.Start(t, "DISTLOCK_URL="+url, "TOKEN_FILE="+file)
		for _, want := range []string{"refreshing", "done"} {
			expect.Equal(t, p.Next(t), want)
		}
		p.End(t)
		expect.Equal(t, string(must.Get(os.ReadFile(file))(t)), "old+")
	})
}

func TestWithoutALockTheFleetIsLoggedOut(t *testing.T) {
	storytest.Run(t, func(t *testing.T, s *story.Story) {
		if _, served, err := simulate(t.Context(), s, refresh); err != nil || served != 0 {
			t.Errorf("%d hosts are served, %v; it should have gone wrong", served, err)
		}
	})
}

func TestUnderALockOneRefreshesForAll(t *testing.T) {
	storytest.Run(t, func(t *testing.T, s *story.Story) {
		refreshes, served, err := simulate(t.Context(), s, refreshLocked)
		if err != nil || refreshes != 1 || served != hosts {
			t.Errorf("%d refreshes, %d of %d hosts are served, %v", refreshes, served, hosts, err)
		}
	})
}

func TestItFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	exampletest.Fails(t, "no such file", "DISTLOCK_URL=mem:", "TOKEN_FILE="+file)
	must.OK(t, os.WriteFile(file, []byte("old"), 0o400))
	exampletest.Fails(t, "connection refused", "DISTLOCK_URL=redis://127.0.0.1:1", "TOKEN_FILE="+file)
	exampletest.Fails(t, "/proc/version: ", "DISTLOCK_URL=mem:", "TOKEN_FILE=/proc/version") // which nobody writes
}
