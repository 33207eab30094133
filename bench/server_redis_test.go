package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/rueidis"
)

// redisServer is a Redis or Valkey server.
type redisServer struct {
	*testserver.RedisServer
	admin rueidis.Client
}

func startRedis(tb testing.TB) coordinator {
	tb.Helper()
	return newRedisServer(tb, testserver.SharedRedis(tb))
}

func startValkey(tb testing.TB) coordinator {
	tb.Helper()
	return newRedisServer(tb, testserver.Valkey(tb))
}

func newRedisServer(tb testing.TB, srv *testserver.RedisServer) coordinator {
	tb.Helper()
	admin := must.Get(newRueidis(srv.Addr()))(tb)
	tb.Cleanup(admin.Close)
	return &redisServer{srv, admin}
}

func (s *redisServer) version() (string, error) {
	lines, err := s.info("server")
	if version, is := lines["valkey_version"]; is {
		return "Valkey " + version, err
	}
	return "Redis " + lines["redis_version"], err
}

// info returns one section of INFO, by line.
func (s *redisServer) info(section string) (map[string]string, error) {
	text, err := s.admin.Do(context.Background(), s.admin.B().Info().Section(section).Build()).ToString()
	if err != nil {
		return nil, err
	}
	lines := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			lines[key] = value
		}
	}
	return lines, nil
}

func (s *redisServer) usage(c contender) (u usage, err error) {
	if u.sent, err = s.sent(c.plain); err != nil {
		return u, err
	}
	u.cpu, err = s.cpu()
	return u, err
}

// inScripts are commands that the contenders' scripts call. The server counts commands in scripts like
// sent ones, so these are left out.
var inScripts = map[string]bool{
	"get": true, "set": true, "getset": true, "getrange": true, "append": true, "del": true, "incr": true, "exists": true,
	"lindex": true, "lpush": true, "lrem": true, "rpush": true, "zadd": true, "zrangebyscore": true, "zrem": true, "zscore": true,
	"pttl": true, "pexpire": true, "pexpireat": true, "publish": true, "spublish": true, "xadd": true, "time": true, "type": true,
	"hdel": true, "hget": true, "hgetall": true, "hincrby": true, "hkeys": true, "hlen": true, "hset": true, "llen": true, "lrange": true,
	"zcard": true, "zcount": true, "zrange": true,
}

// sent counts the commands that clients sent, without the INFO of the benchmark itself. plain means
// that clients send SET, and that no script calls it.
func (s *redisServer) sent(plain bool) (int64, error) {
	stats, err := s.info("commandstats")
	if err != nil {
		return 0, err
	}
	var sum int64
	for key, value := range stats {
		command, ok := strings.CutPrefix(key, "cmdstat_")
		if !ok || command == "info" || inScripts[command] && !(plain && command == "set") {
			continue
		}
		var calls int64
		if _, err := fmt.Sscanf(value, "calls=%d,", &calls); err != nil {
			return 0, fmt.Errorf("INFO commandstats says %s:%s: %w", key, value, err)
		}
		sum += calls
	}
	return sum, nil
}

func (s *redisServer) cpu() (time.Duration, error) {
	lines, err := s.info("cpu")
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, key := range []string{"used_cpu_sys", "used_cpu_user"} {
		seconds, err := strconv.ParseFloat(lines[key], 64)
		if err != nil {
			return 0, err
		}
		sum += seconds
	}
	return time.Duration(sum * float64(time.Second)), nil
}

// count returns the number of live keys with part in their names.
func (s *redisServer) count(part string) (int, error) {
	ctx, n := context.Background(), 0
	for cursor := uint64(0); ; {
		scan := s.admin.B().Scan().Cursor(cursor).Match("*" + part + "*").Count(10_000).Build()
		entry, err := s.admin.Do(ctx, scan).AsScanEntry()
		if err != nil {
			return 0, err
		}
		n += len(entry.Elements)
		if cursor = entry.Cursor; cursor == 0 {
			return n, nil
		}
	}
}

// clear removes all leftovers of a measurement. Other measurements use other names.
func (s *redisServer) clear() error {
	return s.admin.Do(context.Background(), s.admin.B().Flushall().Build()).Error()
}
