package testserver

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ZooKeeperOptions say how servers are set up. The zero value is servers that anybody
// may use, with sessions from 0.4 seconds to 10 minutes.
type ZooKeeperOptions struct {
	// Tick is the server's unit of time: sessions end between their timeout and one
	// tick later. Default: 200 ms.
	Tick time.Duration

	// MinSession and MaxSession are the bounds that the server puts on a session's
	// timeout. Default: two ticks, and 10 minutes.
	MinSession, MaxSession time.Duration

	// ContainerCheck is how often empty containers are looked for, to be removed.
	// Default: one minute.
	ContainerCheck time.Duration

	// TLS gives the server, one that is alone, a second port for clients, which speaks
	// nothing else.
	TLS bool

	// Config are further lines of the configuration: "jute.maxbuffer=1000".
	Config []string

	// Args are further options of Java: "-Dzookeeper.readonly.enabled=true".
	Args []string
}

// write makes the server's folder and command line.
func (o ZooKeeperOptions) write(s *ZooKeeperServer) error {
	o.Tick = cmp.Or(o.Tick, 200*time.Millisecond)
	o.MinSession = cmp.Or(o.MinSession, 2*o.Tick)
	o.MaxSession = cmp.Or(o.MaxSession, 10*time.Minute)
	o.ContainerCheck = cmp.Or(o.ContainerCheck, time.Minute)
	if err := os.MkdirAll(s.data(), 0o700); err != nil {
		return err
	}
	if o.TLS {
		more, err := s.useTLS()
		if err != nil {
			return err
		}
		o.Config = append(more, o.Config...)
	}
	file := filepath.Join(s.dir, "zoo.cfg")
	s.args = o.args(file)
	return os.WriteFile(file, []byte(strings.Join(o.lines(s), "\n")), 0o600)
}

func (o ZooKeeperOptions) lines(s *ZooKeeperServer) []string {
	return append([]string{
		"dataDir=" + s.data(),
		fmt.Sprint("clientPort=", s.port),
		"clientPortAddress=127.0.0.1",
		fmt.Sprint("tickTime=", o.Tick.Milliseconds()),
		fmt.Sprint("minSessionTimeout=", o.MinSession.Milliseconds()),
		fmt.Sprint("maxSessionTimeout=", o.MaxSession.Milliseconds()),
		"maxClientCnxns=0",
		"4lw.commands.whitelist=*",
		"admin.enableServer=false",
	}, o.Config...)
}

// args let the server start quickly and write without waiting for the disk.
func (o ZooKeeperOptions) args(file string) []string {
	args := append([]string{
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64",
		fmt.Sprint("-Dznode.container.checkIntervalMs=", o.ContainerCheck.Milliseconds()),
	}, o.Args...)
	return append(args, "-cp", zooKeeperJars.classPath(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
}
