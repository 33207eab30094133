//go:build linux

package soak

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// store is where locks are, with what shows how much it keeps.
type store struct {
	name   string
	urls   [2]string         // of the clients; the second may lead through proxy
	proxy  *faultproxy.Proxy // nil: there is no network
	gauges []*gauge
	sweep  func() error // removes the remains of holds that were not released, unless they end by time alone
	load   *load
}

// stores are the makers of all stores, by name. Servers end with the test.
var stores = map[string]func(*testing.T) *store{
	"memory": inMemory, "sqlite": sqlite, "redis": redis, "postgres": postgres, "mariadb": mariadb,
	"etcd": etcd, "zookeeper": zookeeper, "serve": served,
}

// behind makes a store of a server, which the second client reaches through a proxy.
func behind(t *testing.T, name, direct, addr string, gauges ...*gauge) *store {
	p := faultproxy.New(t, addr)
	proxied := strings.Replace(direct, addr, p.Addr(), 1)
	return &store{name: name, urls: [2]string{direct, proxied}, proxy: p, gauges: gauges}
}

// open opens the clients and their load.
func (s *store) open(t *testing.T, names int, gate *sync.RWMutex) {
	var clients [2]*distlock.Client
	for i, u := range s.urls {
		c, err := distlock.Open(t.Context(), u, &distlock.Options{TTL: ttl})
		must.OK(t, err, s.name)
		clients[i] = c
	}
	s.load = newLoad(clients, names, gate)
}

func (s *store) close(t *testing.T) {
	for _, c := range s.load.clients {
		if err := c.Close(); err != nil && !errors.Is(err, distlock.ErrUnavailable) { // releases whose connection was cut
			t.Errorf("%s: %v", s.name, err)
		}
	}
}

// untouched returns how many of a number of rows belong to no name that was used. A name has no row yet if all its
// turns were given up.
func (s *store) untouched(rows float64) float64 {
	if s.load == nil {
		return 0
	}
	return max(0, rows-float64(s.load.touched()))
}

func inMemory(t *testing.T) *store {
	u := "mem:soak" + driver.NewOwner()
	b := must.Get(driver.Open(t.Context(), u))(t)
	return &store{name: "memory", urls: [2]string{u, u}, gauges: []*gauge{
		count("memory: names held", 20, func() (n float64, err error) {
			err = b.(driver.Inspector).List(t.Context(), "", func(string) bool { n++; return true })
			return n, err
		}),
	}}
}

func sqlite(t *testing.T) *store {
	file := filepath.Join(t.TempDir(), "locks.db")
	u := "sqlite:" + url.PathEscape(file)
	b, err := driver.Open(t.Context(), u) // it makes the file
	must.OK(t, err)
	b.Close()
	ask := func(query string) func() (float64, error) { return asked("file:"+url.PathEscape(file), query) }
	rows := ask("SELECT count(*) FROM locks")
	return &store{name: "sqlite", urls: [2]string{u, u}, sweep: func() error { return sweep(t.Context(), u, rows) }, gauges: []*gauge{
		count("sqlite: holds and places", 20, ask("SELECT coalesce(sum(length(claims) - length(replace(claims, char(10), ''))), 0) FROM locks")),
		{name: "sqlite: rows of names", slack: 200, read: rows},
		size("sqlite: files", 4, func() (sum float64, err error) {
			for _, suffix := range []string{"", "-wal", "-shm", "-notify"} {
				if info, err := os.Stat(file + suffix); err == nil {
					sum += float64(info.Size())
				}
			}
			return sum, nil
		}),
	}}
}

// sweep uses new names until SQLite has visited all rows: it visits two for each one that is added.
func sweep(ctx context.Context, u string, count func() (float64, error)) error {
	rows, err := count()
	if err != nil {
		return err
	}
	b, err := driver.Open(ctx, u)
	if err != nil {
		return err
	}
	defer b.Close()
	for range int(rows) + 1000 {
		r := driver.Request{Fences: 1, Hold: driver.Hold{
			Name: "sweep " + driver.NewOwner(), Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Minute,
		}}
		if _, err := b.Acquire(ctx, r); err != nil {
			return err
		}
		if err := b.Release(ctx, r.Hold); err != nil {
			return err
		}
	}
	return nil
}

func redis(t *testing.T) *store {
	s := testserver.Redis(t)
	return behind(t, "redis", s.URL(), s.Addr(), ofRedis("redis", s)...)
}

// ofRedis returns gauges of a Redis. The counter of fences is the one key that stays.
func ofRedis(name string, s *testserver.RedisServer) []*gauge {
	return []*gauge{
		count(name+": keys but the counter", 20, func() (float64, error) {
			keys, err := s.Do("DBSIZE")
			if err != nil {
				return 0, err
			}
			counters, err := s.Do("EXISTS", "distlock:fence")
			return toNumber(keys) - toNumber(counters), err
		}),
		count(name+": connections", 10, info(s, "clients", "connected_clients:")),
		count(name+": channels", 20, info(s, "stats", "pubsub_channels:")),
		size(name+": used_memory", 0.5, info(s, "memory", "used_memory:")),
	}
}

func toNumber(v any) float64 {
	f, _ := strconv.ParseFloat(fmt.Sprint(v), 64)
	return f
}

// info reads a line of Redis's INFO.
func info(s *testserver.RedisServer, section, key string) func() (float64, error) {
	return func() (float64, error) {
		text, err := s.Do("INFO", section)
		if err != nil {
			return 0, err
		}
		return line(fmt.Sprint(text), key)
	}
}

// line returns the number behind a key at the beginning of a line.
func line(text, key string) (float64, error) {
	for l := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(l, key); found {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("no line %q", key)
}

// asked asks an SQLite file on a connection that is closed again: while one is open, SQLite keeps the files of the
// others that were closed.
func asked(source, query string) func() (float64, error) {
	return func() (float64, error) {
		db, err := sql.Open("sqlite", source+"?_pragma=busy_timeout(60000)")
		if err != nil {
			return 0, err
		}
		defer db.Close()
		return number(db, query)()
	}
}

func number(db *sql.DB, query string) func() (float64, error) {
	return func() (v float64, err error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = db.QueryRowContext(ctx, query).Scan(&v)
		return v, err
	}
}

func withTable(rawURL string) string {
	if strings.Contains(rawURL, "?") {
		return rawURL + "&create=true"
	}
	return rawURL + "?create=true"
}

func postgres(t *testing.T) *store {
	server := testserver.Postgres(t, testserver.PostgresOptions{})
	u := server.Database(t)
	db := server.DB(t, u)
	db.SetMaxOpenConns(1)
	s := behind(t, "postgres", withTable(u), server.Addr())
	rows := number(db, "SELECT count(*) FROM distlock_locks")
	table := "SELECT coalesce(pg_total_relation_size(to_regclass('distlock_locks')), 0)"
	clients := "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
	s.gauges = []*gauge{
		count("postgres: rows but one for each name", 20, func() (float64, error) {
			if s.load == nil {
				return 0, nil // there is no table yet
			}
			v, err := rows()
			return s.untouched(v), err
		}),
		size("postgres: table and index", 0.5, number(db, table)),
		count("postgres: connections", 10, number(db, clients)),
		size("postgres: memory of a process", 1, func() (float64, error) { return meanMemory(server.PID()) }),
	}
	return s
}

func mariadb(t *testing.T) *store {
	// InnoDB fills the memory that it is given with pages: little is full soon.
	server := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--innodb-buffer-pool-size=16M"}})
	u := server.Database(t)
	db := server.DB(t, u)
	db.SetMaxOpenConns(1)
	s := behind(t, "mariadb", withTable(u), server.Addr())
	rows := number(db, "SELECT count(*) FROM distlock_locks")
	clients := "SELECT count(*) FROM information_schema.processlist WHERE command <> 'Daemon'"
	s.gauges = []*gauge{
		count("mariadb: rows but one for each name", 20, func() (float64, error) {
			if s.load == nil {
				return 0, nil
			}
			v, err := rows()
			return s.untouched(v), err
		}),
		count("mariadb: connections", 10, number(db, clients)),
		size("mariadb: memory", 16, func() (float64, error) { return memory(server.PID()) }),
	}
	return s
}

// etcd remembers each key until its history is compacted, and each request until a snapshot: here that is soon.
func etcd(t *testing.T) *store {
	server := testserver.Etcd(t, testserver.EtcdOptions{
		Args: []string{"--auto-compaction-mode", "periodic", "--auto-compaction-retention", "10s", "--snapshot-count", "1000"},
	})
	return behind(t, "etcd", server.URL(), server.Addr(),
		count("etcd: keys", 20, func() (float64, error) {
			var answer struct{ Count json.Number }
			err := post("http://"+server.Addr()+"/v3/kv/range", `{"key":"AA==","range_end":"AA==","count_only":true}`, &answer)
			v, _ := answer.Count.Float64()
			return v, err
		}),
		count("etcd: leases", 20, func() (float64, error) {
			var answer struct{ Leases []any }
			err := post("http://"+server.Addr()+"/v3/lease/leases", "{}", &answer)
			return float64(len(answer.Leases)), err
		}),
		count("etcd: watchers", 20, func() (float64, error) {
			resp, err := once.Get("http://" + server.Addr() + "/metrics")
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				return 0, err
			}
			return line(string(text), "etcd_debugging_mvcc_watcher_total ")
		}),
		count("etcd: open files", 10, func() (float64, error) { return files(server.PID()) }),
		size("etcd: memory", 4, func() (float64, error) { return memory(server.PID()) }),
	)
}

// once makes each request on a connection of its own, so that none stays open.
var once = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

func post(url, body string, into any) error {
	resp, err := once.Post(url, "application/json", bytes.NewReader([]byte(body)))
	return decode(resp, err, into)
}

func decode(resp *http.Response, err error, into any) error {
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

func zookeeper(t *testing.T) *store {
	server := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{Containers: 5 * time.Second})
	of := func(key string) func() (float64, error) {
		return func() (float64, error) {
			text, err := server.Ask("mntr")
			if err != nil {
				return 0, err
			}
			return line(text, "zk_"+key+"\t")
		}
	}
	// The heap of a Java process says nothing before it is full.
	return behind(t, "zookeeper", server.URL(), server.Addr(),
		count("zookeeper: ephemeral nodes", 20, of("ephemerals_count")),
		count("zookeeper: nodes", 200, of("znode_count")),
		count("zookeeper: watches", 20, of("watch_count")),
		count("zookeeper: connections", 10, of("num_alive_connections")),
		size("zookeeper: data", 0.1, of("approximate_data_size")),
	)
}

// served is a server of package server, in a process of its own, before a Redis.
func served(t *testing.T) *store {
	back := testserver.Redis(t)
	addr := startChild(t, back.URL())
	of := func(which func(figures) float64) func() (float64, error) {
		return func() (float64, error) {
			var f figures
			resp, err := once.Get("http://" + addr + figuresPath)
			err = decode(resp, err, &f)
			return which(f), err
		}
	}
	used := of(func(f figures) float64 { return f.Heap / mega })
	gauges := append(ofRedis("serve", back),
		&gauge{name: "serve: heap in use after GC, MB", slack: 2, read: used},
		&gauge{name: "serve: goroutines", slack: 20, read: of(func(f figures) float64 { return f.Goroutines })},
		&gauge{name: "serve: open files", slack: 10, read: of(func(f figures) float64 { return f.Files })},
	)
	return behind(t, "serve", "http://"+addr, addr, gauges...)
}
