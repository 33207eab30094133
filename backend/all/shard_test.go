package all_test

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/all"
	"github.com/distlock/distlock/backend/shard"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

func shardURL(members ...string) string {
	var parts []string
	for _, m := range members {
		parts = append(parts, "member="+url.QueryEscape(m))
	}
	return "shard:?" + strings.Join(parts, "&")
}

// A shard of four kinds of members, also a quorum. Locks exclude each other at each member.
func TestShardOfAllKinds(t *testing.T) {
	dir := t.TempDir()
	redis := "redis=" + testserver.SharedRedis(t).URL()
	etcd := "etcd=" + testserver.SharedEtcd(t).URL()
	sqlite := "sqlite=sqlite:" + filepath.Join(dir, "locks.db")
	quorum := "quorum=quorum:?" + url.Values{"member": {
		"sqlite:" + filepath.Join(dir, "q1.db"), "sqlite:" + filepath.Join(dir, "q2.db"), "sqlite:" + filepath.Join(dir, "q3.db"),
	}}.Encode()
	all := shardURL(redis, etcd, sqlite, quorum)
	var clients []*distlock.Client
	for range 2 {
		c := must.Get(distlock.Open(t.Context(), all, nil))(t)
		defer c.Close()
		clients = append(clients, c)
	}
	owner := must.Get(shard.NewRouter("", "redis", "etcd", "sqlite", "quorum"))(t)
	taken := map[string]int{}
	for i := 0; len(taken) < 4 || i < 40; i++ {
		name := fmt.Sprint(t.Name(), driver.NewOwner())
		lease := must.Get(clients[i%2].Mutex(name).Lock(t.Context()))(t)
		if _, err := clients[1-i%2].Mutex(name).TryLock(t.Context()); !errors.Is(err, distlock.ErrHeld) {
			t.Errorf("%s is held, and taken at %s: %v", name, owner.Of(name), err)
		}
		expect.OK(t, lease.Unlock(t.Context()))
		taken[owner.Of(name)]++
	}
	t.Log(taken)
}
