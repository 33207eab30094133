package redislock

import (
	"errors"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Who is named in a URL logs in, or nobody does: never the default user, in any form of URL.
func TestUserWithoutAPassword(t *testing.T) {
	single, sentinels, cluster := testserver.SharedRedis(t), testserver.SharedRedisSentinel(t), testserver.SharedRedisCluster(t)
	forms := map[string]struct {
		url     string // with the login in place of %
		servers []*testserver.RedisServer
	}{
		"redis":          {"redis://%" + single.Addr(), []*testserver.RedisServer{single}},
		"redis?":         {"redis://%" + single.Addr() + "/1?prefix=a:", []*testserver.RedisServer{single}},
		"redis+sentinel": {strings.Replace(sentinelURL(sentinels), "://", "://%", 1), []*testserver.RedisServer{sentinels.Master()}},
		"redis+cluster":  {strings.Replace(clusterURL(cluster), "://", "://%", 1), cluster.Masters()},
	}
	for form, f := range forms {
		locked, open := "locked"+driver.NewOwner(), "open"+driver.NewOwner()
		for _, srv := range f.servers {
			mustDo(t, srv, "ACL", "SETUSER", locked, "on", ">pw", "~*", "&*", "+@all")
			mustDo(t, srv, "ACL", "SETUSER", open, "on", "nopass", "~*", "&*", "+@all")
			t.Cleanup(func() { srv.Do("ACL", "DELUSER", locked, open) })
		}
		for login, want := range map[string]string{
			"": "default", ":@": "default", "default@": "default",
			locked + ":pw@": locked, locked + "@": "", locked + ":@": "", locked + ":x@": "",
			open + "@": open, open + ":@": open, open + ":x@": open,
			"nobody@": "", "nobody:@": "", "nobody:x@": "",
		} {
			b, err := Open(t.Context(), strings.Replace(f.url, "%", login, 1))
			if err != nil {
				if want != "" || !errors.Is(err, driver.ErrInvalid) {
					t.Errorf("%s: %q: %v; want %q", form, login, err, want)
				}
				continue
			}
			reply, err := b.client.Do(t.Context(), "", []string{"ACL", "WHOAMI"})
			if reply != want || err != nil {
				t.Errorf("%s: %q: %v, %v; want %q", form, login, reply, err, want)
			}
			b.Close()
		}
	}
}
