package redislock

import (
	"testing"

	"github.com/distlock/distlock/internal/testserver"
)

// noScripts is a server on which nobody may run scripts.
func noScripts(t *testing.T) *testserver.RedisServer {
	return testserver.Redis(t, "--aclfile", testserver.File(t, "users.acl", "user default on nopass ~* &* +@all -@scripting\n"))
}

// scriptlessOpeners: Open finds out by itself.
var scriptlessOpeners = []opener{
	{"url", openOwn},
	{"go-redis", func(t testing.TB, addr string, o Options) *Backend {
		o.Scripts = ScriptsOff
		return openGoRedis(t, addr, o)
	}},
	{"rueidis", func(t testing.TB, addr string, o Options) *Backend {
		o.Scripts = ScriptsOff
		return openRueidis(t, addr, o)
	}},
}

func eachScriptless(t *testing.T, test func(t *testing.T, o opener)) {
	for _, o := range scriptlessOpeners {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			test(t, o)
		})
	}
}

func TestScriptlessConformance(t *testing.T) {
	srv := noScripts(t)
	for _, o := range scriptlessOpeners {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			conform(t, srv, o, Options{})
		})
	}
}
