package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/distlock/distlock/backend/httplock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// onServer is a Redis, and a distlock server before it in a process of its own, with its usual log. Contenders
// use the one or the other.
const onServer = "server"

func init() { coordinators[onServer] = startServed }

// The contenders on Redis and on the server before it.
var (
	direct = contender{name: "distlock on Redis", ours: true, open: func(addr string, ttl time.Duration) (client, error) {
		redis, _, _ := strings.Cut(addr, ",")
		return openDistlock(redis, ttl)
	}}
	served = contender{name: "distlock through a server", ours: true, open: func(addr string, ttl time.Duration) (client, error) {
		_, server, _ := strings.Cut(addr, ",")
		return openDistlockAt("http://")(server, ttl)
	}}
	noneServed = contender{name: never.name, ours: true, open: served.open}

	// bareHTTP makes two requests that lock nothing.
	bareHTTP = contender{name: "raw HTTP, GET /healthz twice", open: func(addr string, _ time.Duration) (client, error) {
		_, server, _ := strings.Cut(addr, ",")
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost = 128
		return &httpClient{&http.Client{Transport: t}, "http://" + server + "/healthz"}, nil
	}}
	viaServer = []contender{direct, served, bareHTTP}
)

// httpClient sends requests that lock nothing. It is its own mutex.
type httpClient struct {
	*http.Client
	url string
}

func (c *httpClient) mutex(string) mutex { return c }
func (c *httpClient) close()             { c.CloseIdleConnections() }
func (c *httpClient) unlock() error      { return c.lock(context.Background()) }

func (c *httpClient) lock(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

var servedScenarios = []scenario{
	uncontended(onServer, 1, viaServer, direct.name),
	uncontended(onServer, 16, viaServer, direct.name),
	uncontended(onServer, 128, viaServer, direct.name),
	handoff(onServer, []contender{direct, served}),
	servedLeases,
	openStreams("watches", "Open watches of 100 locks that are held", 2000, openWatch),
	openStreams("pages", "Open pages with the list of 100 locks", 200, openPage),
}

// servedLeases renews many leases through the server.
var servedLeases = func() scenario {
	s := leasesOf(10_000)
	s.name, s.at, s.contenders = onServer+"/held/10000", onServer, []contender{noneServed, direct, served}
	return s
}()

// servedRedis is a coordinator.
type servedRedis struct {
	*redisServer
	addr string // of the server
	pid  int
}

// startServed starts a server before a Redis. It ends with the test.
func startServed(tb testing.TB) coordinator {
	tb.Helper()
	s, end, err := startServe(startRedis(tb).(*redisServer))
	must.OK(tb, err)
	tb.Cleanup(end)
	return s
}

func startServe(redis *redisServer) (s *servedRedis, end func(), err error) {
	path, err := cli()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(path, "--url", "redis://"+redis.Addr(), "serve", "--listen", "127.0.0.1:0", "--max-open", "5000", "--max-holds", "20000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := testserver.Spawn(cmd); err != nil { // its log goes to the null device
		return nil, nil, err
	}
	end = func() { cmd.Process.Kill(); cmd.Wait() }
	line, err := bufio.NewReader(out).ReadString('\n')
	addr, _, found := strings.Cut(line, " serves ")
	if err != nil || !found {
		end()
		return nil, nil, fmt.Errorf("the server says %q, %v", line, err)
	}
	return &servedRedis{redis, addr, cmd.Process.Pid}, end, nil
}

func (s *servedRedis) Addr() string { return s.redisServer.Addr() + "," + s.addr }

// usage adds the server's processor time to the processor time of Redis.
func (s *servedRedis) usage(c contender) (usage, error) {
	u, err := s.redisServer.usage(c)
	if err != nil {
		return u, err
	}
	own, err := cpuOfFamily(s.pid)
	u.cpu += own
	return u, err
}

// openStreams measures the memory of streams that are open at a server of their own: one that had streams before
// has memory left for more.
func openStreams(name, title string, n int, open func(s *servedRedis, i int) (io.Closer, error)) scenario {
	return scenario{
		name: onServer + "/" + name + "/" + strconv.Itoa(n), at: onServer, title: fmt.Sprintf("%s: %d", title, n), contenders: []contender{served}, big: true,
		measure: func(r *rig, c contender) (figures, error) {
			s, end, err := startServe(r.coordinator.(*servedRedis).redisServer)
			if err != nil {
				return nil, err
			}
			defer end()
			defer s.clear()
			cl, err := direct.open(s.Addr(), ttl)
			if err != nil {
				return nil, err
			}
			defer cl.close()
			for i := range 100 {
				if err := cl.mutex(fmt.Sprint("bench:stream:", i)).lock(context.Background()); err != nil {
					return nil, err
				}
			}
			before, err := s.rss()
			if err != nil {
				return nil, err
			}
			var streams []io.Closer
			defer func() {
				for _, c := range streams {
					c.Close()
				}
			}()
			start := time.Now()
			for i := range n {
				one, err := open(s, i)
				if err != nil {
					return nil, err
				}
				streams = append(streams, one)
			}
			took := time.Since(start)
			time.Sleep(r.time)
			used, err := cpuOfFamily(s.pid)
			if err != nil {
				return nil, err
			}
			time.Sleep(2 * time.Second)
			after, err := s.rss()
			if err != nil {
				return nil, err
			}
			later, err := cpuOfFamily(s.pid)
			return figures{
				{"opened/s", float64(n) / took.Seconds()},
				{"server-RSS-kB/stream", float64(after-before) / 1024 / float64(n)},
				{"server-CPU-%", 100 * (later - used).Seconds() / 2},
			}, err
		},
	}
}

// rss returns how much memory the server's process has.
func (s *servedRedis) rss() (int64, error) {
	fields, err := statOf(s.pid)
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(string(fields[21]), 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// stream is an answer that goes on.
type stream struct{ io.ReadCloser }

// openStream returns when the first event has come.
func openStream(method, url, body string) (io.Closer, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	first := make([]byte, 1)
	if _, err := resp.Body.Read(first); err != nil || resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, errors.Join(err, errors.New(resp.Status))
	}
	return stream{resp.Body}, nil
}

func openWatch(s *servedRedis, i int) (io.Closer, error) {
	body := fmt.Sprintf(`{"name":"bench:stream:%d","owner":%q,"ttl_ms":30000}`, i%100, driver.NewOwner())
	return openStream("POST", "http://"+s.addr+"/v1/watch", body)
}

func openPage(s *servedRedis, _ int) (io.Closer, error) {
	return openStream("GET", "http://"+s.addr+"/v1/events?page=locks&prefix=bench:stream:", "")
}
