//go:build linux

package chaos

import (
	"strings"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// members are servers that fail together.
type members []*testserver.RedisServer

func (m members) Addr() string { return m[0].Addr() }
func (m members) Kill()        { m.each((*testserver.RedisServer).Kill) }
func (m members) Start()       { m.each((*testserver.RedisServer).Start) }
func (m members) Pause()       { m.each((*testserver.RedisServer).Pause) }
func (m members) Resume()      { m.each((*testserver.RedisServer).Resume) }

func (m members) each(f func(*testserver.RedisServer)) {
	for _, srv := range m {
		f(srv)
	}
}

// redlock starts three servers, of which some fail.
func redlock(failing int, args ...string) func(*scene) {
	return func(s *scene) {
		var all members
		var addrs []string
		for range 3 {
			srv := testserver.Redis(s.T, args...)
			all, addrs = append(all, srv), append(addrs, srv.Addr())
		}
		s.server, s.url = all[:failing], "quorum+redis://"+strings.Join(addrs, ",")
	}
}

func redlockCells() []cell {
	one := deployment{name: "redlock-one", title: "Redlock, one of three members, AOF always", ttl: 2 * time.Second, start: redlock(1, "--appendonly", "yes", "--appendfsync", "always")}
	disk := deployment{name: "redlock-aof", title: "Redlock, all members, AOF always", ttl: 2 * time.Second, start: redlock(3, "--appendonly", "yes", "--appendfsync", "always")}
	memory := deployment{name: "redlock-memory", title: "Redlock, all members, no persistence", ttl: 2 * time.Second, more: 2 * time.Second, start: redlock(3)}
	return []cell{
		{one, killClient, "kill-client", safe},
		{one, pauseClient, "pause-client", withFences},
		{one, killServer, "kill-server", safe},
		{one, bounceServer, "bounce-server", safe},
		{one, pauseServer, "pause-server", safe},
		{disk, killServer, "kill-server", safe},
		{disk, bounceServer, "bounce-server", safe},
		{disk, pauseServer, "pause-server", safe},
		{memory, bounceServer, "bounce-server", withFences},
	}
}
