package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcdServer is an etcd server of the current or of the installed release.
type etcdServer struct {
	*testserver.EtcdServer
	admin *clientv3.Client
}

func startCurrentEtcd(tb testing.TB) coordinator {
	tb.Helper()
	return newEtcdServer(tb, testserver.SharedCurrentEtcd(tb))
}

func startInstalledEtcd(tb testing.TB) coordinator {
	tb.Helper()
	return newEtcdServer(tb, testserver.SharedEtcd(tb))
}

func newEtcdServer(tb testing.TB, s *testserver.EtcdServer) coordinator {
	tb.Helper()
	admin := must.Get(newEtcdClient(s.Addr()))(tb)
	tb.Cleanup(func() { admin.Close() })
	return &etcdServer{s, admin}
}

func (s *etcdServer) version() (string, error) {
	r, err := s.admin.Status(context.Background(), s.Addr())
	if err != nil {
		return "", err
	}
	return "etcd " + r.Version, nil
}

func (s *etcdServer) usage(contender) (u usage, err error) {
	if u.sent, err = s.received(); err != nil {
		return u, err
	}
	u.cpu, err = cpuOf(s.PID())
	return u, err
}

// received returns the number of messages that clients have sent.
func (s *etcdServer) received() (int64, error) {
	resp, err := http.Get("http://" + s.Addr() + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var sum float64
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "grpc_server_msg_received_total{") {
			continue
		}
		n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("etcd's metrics say %q: %w", line, err)
		}
		sum += n
	}
	return int64(sum), lines.Err()
}

func (s *etcdServer) count(part string) (n int, err error) {
	all, err := s.admin.Get(context.Background(), "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	if err != nil {
		return 0, err
	}
	for _, kv := range all.Kvs {
		if strings.Contains(string(kv.Key), part) {
			n++
		}
	}
	return n, nil
}

func (s *etcdServer) clear() error {
	_, err := s.admin.Delete(context.Background(), "\x00", clientv3.WithFromKey())
	return err
}

func (s *etcdServer) write(every time.Duration) (stop func(), err error) {
	return keepWriting(every, func(ctx context.Context) error {
		_, err := s.admin.Put(ctx, "bench-others", "x")
		return err
	})
}

// keepWriting writes once, and then continues in the background.
func keepWriting(every time.Duration, write func(context.Context) error) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	if err := write(ctx); err != nil {
		cancel()
		return nil, err
	}
	done := make(chan struct{})
	tick := time.NewTicker(every)
	go func() {
		defer close(done)
		for {
			select {
			case <-tick.C:
				if err := write(ctx); err != nil && !errors.Is(err, context.Canceled) {
					fmt.Println("others can't write:", err)
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		tick.Stop()
		<-done
	}, nil
}
