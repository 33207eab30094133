package redisson

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/interop"
)

var jvms = &interop.JVMs{Class: "distlock.interop.RedissonPeer"}

// javaClient is the name of the process's client of a deployment; or the names of those
// of independent servers.
func javaClient(t *testing.T, j *interop.JVM, d *deployment, watchdog time.Duration) string {
	t.Helper()
	if d.mode == "red" {
		var names []string
		for _, addr := range d.addrs {
			names = append(names, javaClient(t, j, &deployment{name: "red", mode: "member", addrs: []string{addr}}, watchdog))
		}
		return strings.Join(names, ",")
	}
	key := strings.Join(append([]string{d.name, watchdog.String()}, d.addrs...), " ")
	return j.Client(t, key, d.mode, strings.Join(d.addrs, ","), interop.Millis(watchdog), d.prefix)
}

// disconnectAll closes the clients of servers that are going to end, in all processes.
func disconnectAll(t *testing.T, addrs []string) {
	t.Helper()
	jvms.Disconnect(t, func(key string) bool {
		return slices.ContainsFunc(addrs, func(addr string) bool { return slices.Contains(strings.Fields(key), addr) })
	})
}

// token is the fence in the answer of a fenced lock.
func token(t *testing.T, reply []string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(reply[1], 10, 64)
	if err != nil {
		t.Fatalf("java: no token in %v", reply)
	}
	return n
}
