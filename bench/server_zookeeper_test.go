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
	"github.com/go-zookeeper/zk"
)

// zooKeeperServer is a ZooKeeper server.
type zooKeeperServer struct {
	*testserver.ZooKeeperServer
	admin *zk.Conn
}

func startZooKeeper(tb testing.TB) coordinator {
	tb.Helper()
	s := testserver.SharedZooKeeper(tb)
	admin := must.Get(newZooKeeperClient(s.Addr(), ttl))(tb)
	tb.Cleanup(admin.Close)
	return &zooKeeperServer{s, admin}
}

func (s *zooKeeperServer) version() (string, error) {
	text, err := s.Ask("srvr")
	if err != nil {
		return "", err
	}
	_, version, _ := strings.Cut(text, "Zookeeper version: ")
	version, _, _ = strings.Cut(version, "-")
	return "ZooKeeper " + version, nil
}

func (s *zooKeeperServer) usage(contender) (u usage, err error) {
	if u.sent, err = s.received(); err != nil {
		return u, err
	}
	u.cpu, err = cpuOf(s.PID())
	return u, err
}

// received returns the number of packets that clients have sent.
func (s *zooKeeperServer) received() (int64, error) {
	text, err := s.Ask("mntr")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "zk_packets_received\t"); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("ZooKeeper does not say how many packets it received: %q", text)
}

func (s *zooKeeperServer) write(every time.Duration) (stop func(), err error) {
	if err := createOnce(s.admin, "/bench-others"); err != nil {
		return nil, err
	}
	return keepWriting(every, func(context.Context) error {
		_, err := s.admin.Set("/bench-others", []byte("x"), -1)
		return err
	})
}
