package paused

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/fence/fencehttp"
	"github.com/distlock/distlock/fence/fenceredis"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// store keeps a number. Its methods present a fence. Fence 0 skips the check.
type store interface {
	read(ctx context.Context, f uint64) (int, error)
	write(ctx context.Context, n int, f uint64) error
}

// kind is a kind of store.
type kind struct {
	start func(t *testing.T) (lockURL, dataURL string) // new ones for each test
	open  func(dataURL string) (store, error)
}

var kinds = map[string]kind{
	"redis":    {startRedis, openRedis(byGoRedis)},
	"rueidis":  {startRedis, openRedis(byRueidis)},
	"memory":   {startHTTP, openHTTP},
	"mariadb":  {startMariaDB, openMySQL(guardTable)},
	"postgres": {startPostgres, openPostgres(guardTable)},
	"sqlite":   {startSQLite, openSQLite(guardTable)},

	"mariadb-column":  {startMariaDB, openMySQL(fenceColumn)},
	"postgres-column": {startPostgres, openPostgres(fenceColumn)},
	"sqlite-column":   {startSQLite, openSQLite(fenceColumn)},
}

// The store in Redis.

type redisStore struct {
	client *redis.Client
	guard  *fenceredis.Guard
}

func startRedis(t *testing.T) (lockURL, dataURL string) {
	url := testserver.Redis(t).URL()
	return url, url
}

func openRedis(guard func(addr string) (*fenceredis.Guard, error)) func(string) (store, error) {
	return func(dataURL string) (store, error) {
		addr := strings.TrimPrefix(dataURL, "redis://")
		g, err := guard(addr)
		return &redisStore{redis.NewClient(&redis.Options{Addr: addr}), g}, err
	}
}

func byGoRedis(addr string) (*fenceredis.Guard, error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	return fenceredis.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
		return redis.NewScript(script).Run(ctx, client, keys, args).Result()
	}), nil
}

func byRueidis(addr string) (*fenceredis.Guard, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	return fenceredis.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
		return rueidis.NewLuaScript(script).Exec(ctx, client, keys, args).ToAny()
	}), err
}

// key is the data's key. The lock in the same server has the name in it.
const key = "data:{" + name + "}"

func (s *redisStore) read(ctx context.Context, f uint64) (int, error) {
	if f == 0 {
		return s.client.Get(ctx, key).Int()
	}
	answer, err := s.guard.Run(ctx, name, f, "return redis.call('GET', KEYS[1])", []string{key}, nil)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fmt.Sprint(answer))
}

func (s *redisStore) write(ctx context.Context, n int, f uint64) error {
	if f == 0 {
		return s.client.Set(ctx, key, n, 0).Err()
	}
	_, err := s.guard.Run(ctx, name, f, "redis.call('SET', KEYS[1], ARGV[1])", []string{key}, []string{strconv.Itoa(n)})
	return err
}

// The store in a server's memory, behind HTTP.

type httpStore struct{ url string }

func startHTTP(t *testing.T) (lockURL, dataURL string) {
	var mu sync.Mutex
	n := 0
	number := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPut {
			_, _ = fmt.Fscan(r.Body, &n)
		}
		fmt.Fprint(w, n)
	})
	guarded := must.Get(fencehttp.New(number, new(fence.Memory), nil))(t)
	mux := http.NewServeMux()
	mux.Handle("/"+plain, number)
	mux.Handle("/"+fenced, guarded)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return sqliteLocks(t), s.URL
}

func openHTTP(dataURL string) (store, error) { return &httpStore{dataURL}, nil }

func (s *httpStore) read(ctx context.Context, f uint64) (int, error) {
	answer, err := s.send(ctx, http.MethodGet, "", f)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(answer)
}

func (s *httpStore) write(ctx context.Context, n int, f uint64) error {
	_, err := s.send(ctx, http.MethodPut, strconv.Itoa(n), f)
	return err
}

func (s *httpStore) send(ctx context.Context, method, body string, f uint64) (string, error) {
	path := "/" + fenced
	if f == 0 {
		path = "/" + plain
	}
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	fencehttp.Set(r.Header, f)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if err := fencehttp.Stale(response); err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", errors.New(response.Status)
	}
	answer, err := io.ReadAll(response.Body)
	return string(answer), err
}
