//go:build unix

package cli

import (
	"testing"

	"github.com/distlock/distlock/internal/testserver"
)

// A server that is gone by the end of the wait is no holder that is in the way.
func TestServerGoesDuringTheWait(t *testing.T) {
	t.Parallel()
	for name, goAway := range map[string]func(*testserver.RedisServer){
		"killed": func(s *testserver.RedisServer) { s.Kill() },
		"paused": func(s *testserver.RedisServer) { s.Pause() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Redis(t)
			_, release := hold(t, s.URL(), "door")
			t.Cleanup(release)
			p := start(t, s.URL(), "run", "--wait", "3s", "--skip-ok", "door", "--", "true")
			finishWith(t, s.URL(), 75, "run", "--wait", "500ms", "door", "--", "true")
			goAway(s)
			p.must(exitUnreachable)
		})
	}
}
