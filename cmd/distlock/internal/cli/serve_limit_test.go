//go:build unix

package cli

import (
	"io"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
)

// renewals returns how many renewals a server has logged.
func renewals(log string) int { return strings.Count(log, `call="POST /v1/renew"`) }

// Strangers can't use up the files of a server: what is held is renewed, and what is free can be taken.
func TestServeBesideStrangers(t *testing.T) {
	t.Parallel()
	p := command(t, lockFile(t), "serve", "--listen", "127.0.0.1:0", "--drain", "0s", "--access-log")
	p.Args = append([]string{"sh", "-c", `ulimit -n 256; exec "$0" "$@"`, p.Path}, p.Args[1:]...)
	p.Path = "/bin/sh"
	p.begin()
	p.out.await(t, " serves ")
	addr := regexp.MustCompile(`(?m)^(127\S+) serves`).FindStringSubmatch(p.out.String())[1]
	url := "http://" + addr
	held, release := hold(t, url, "a")
	for i := range 400 {
		c := must.Get(net.Dial("tcp", addr))(t)
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, []string{"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET /v1 HT", ""}[i%3])
	}
	before := renewals(p.errors.String())
	p.errors.awaitThat(t, "a renewal", func(text string) bool { return renewals(text) > before })
	finishWith(t, url, 0, "run", "--no-wait", "b", "--", "true")
	release()
	held.must(0)
	if log := p.errors.String(); strings.Contains(log, "too many open files") {
		t.Error(log)
	}
}

// A process that may open few files keeps some for its backend.
func TestMostConnections(t *testing.T) {
	for files, want := range map[uint64]int{16: 1, 64: 32, 256: 192, 20_000: 15_000, 1 << 63: 3 << 18} {
		if got := mostConnections(files); got != want {
			t.Errorf("%d of %d files; want %d", got, files, want)
		}
	}
}
