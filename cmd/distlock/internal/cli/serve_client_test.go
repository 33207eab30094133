//go:build unix

package cli

import (
	"path/filepath"
	"testing"
)

// Through a server the commands do what they do with its backend. Its memory is no other process's, but all
// reach it.
func TestCommandsThroughServer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	start(t, "mem:", "serve", "--listen", "unix:"+path, "--drain", "0s").out.await(t, " serves ")
	url := "http+unix://" + path
	held := start(t, url, "run", "door", "--", "sh", "-c", "echo inside $DISTLOCK_FENCE; exec sleep 60")
	held.out.await(t, "inside 1")
	finishWith(t, url, exitBusy, "run", "--no-wait", "door", "--", "true")
	finishWith(t, url, 0, "ls").out.await(t, "door")
	finishWith(t, url, 0, "show", "door").out.await(t, "program  sh")
	finishWith(t, url, 0, "unlock", "--ask", "door")
	held.must(128 + 15)
	held = start(t, url, "run", "--ttl", "9s", "door", "--", "sh", "-c", "echo inside; exec sleep 60")
	held.out.await(t, "inside")
	finishWith(t, url, 0, "unlock", "--force", "door")
	held.must(exitLost)
	finishWith(t, url, 0, "run", "--no-wait", "door", "--", "true")
}
