package redisconn

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The error of a handshake that the server refuses is the error of each command: go-redis gives it to none of several.
func TestRefusedHandshakeOfAPipeline(t *testing.T) {
	s := NewServer(&redis.Options{Addr: testserver.SharedRedis(t).Addr(), Username: "nobody", Password: "wrong"})
	defer s.Close()
	commands := [][]string{{"PING"}, {"PING"}}
	conn := must.Get(s.Dedicated(t.Context()))(t)
	defer conn.Close(true)
	for what, got := range map[string][]Answer{"shared": s.DoAll(t.Context(), commands), "dedicated": conn.DoAll(t.Context(), commands)} {
		for _, a := range got {
			if re, is := AsReply(a.Err); !is || !re.HasCode("WRONGPASS") {
				t.Errorf("%s: %v, %v", what, a.Reply, a.Err)
			}
		}
	}
}
