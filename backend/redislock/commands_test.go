package redislock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// usage counts how often the server ran each command since the last count: commands from the
// network and commands called by scripts.
func usage(t testing.TB, srv *testserver.RedisServer) (sent, inside map[string]int) {
	t.Helper()
	reply := must.Get(srv.Do("INFO", "commandstats"))(t)
	must.Get(srv.Do("CONFIG", "RESETSTAT"))(t)
	sent, inside = map[string]int{}, map[string]int{}
	for line := range strings.Lines(fmt.Sprint(reply)) {
		stat, ok := strings.CutPrefix(line, "cmdstat_")
		name, rest, _ := strings.Cut(stat, ":")
		calls := 0
		if n, _ := fmt.Sscanf(rest, "calls=%d,", &calls); !ok || n != 1 || name == "info" || strings.HasPrefix(name, "config") {
			continue
		}
		if strings.HasPrefix(name, "eval") {
			sent[name] = calls
		} else {
			inside[name] = calls
		}
	}
	return sent, inside
}

// A look at another program's hash costs the same, whatever its size.
func TestInspectOfALargeHash(t *testing.T) {
	srv := testserver.Redis(t)
	for _, layout := range []Layout{String, Redisson} {
		b := openOwn(t, srv.Addr(), Options{Layout: layout})
		for what, mode := range map[string]string{"without a mode": "", "with another mode": "dark"} {
			args := []string{"HSET", what}
			for i := range 5000 {
				args = append(args, fmt.Sprint("field", i), "x")
			}
			if mode != "" {
				args = append(args, "mode", mode)
			}
			must.Get(srv.Do(args...))(t)
			_, _ = b.Inspect(t.Context(), what) // loads the script
			usage(t, srv)
			if _, err := b.Inspect(t.Context(), what); !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("a hash %s: %v", what, err)
			}
			if _, inside := usage(t, srv); inside["get"]+inside["pttl"]+inside["hkeys"] > 5 {
				t.Errorf("a hash %s: %v", what, inside)
			}
		}
	}
}

// Each call for a lock is one command on the network; only a free lock of the layout "string" is taken by four in one
// trip, by an exclusive holder or a writer, and one that is not free by a script behind them. The test logs the commands that a script calls.
func TestCommandsOfEachCall(t *testing.T) {
	srv := testserver.Redis(t)
	for _, layout := range []Layout{String, Redisson} {
		b := openOwn(t, srv.Addr(), Options{Layout: layout})
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
			warm(t, b, mode)
			warm(t, b, driver.Write) // which refuses readers
			usage(t, srv)
			countEach(t, srv, fmt.Sprintf("%-8s %-9v", layout, mode), callsOf(t, b, mode))
		}
		warm(t, b, driver.Exclusive)
		usage(t, srv)
		countEach(t, srv, fmt.Sprintf("%-8s fair     ", layout), fairCalls(t, b))
	}
}

func countEach(t *testing.T, srv *testserver.RedisServer, what string, calls []lockCall) {
	t.Helper()
	for _, call := range calls {
		if err := call.do(); !errors.Is(err, call.want) {
			t.Fatalf("%s %s: %v", what, call.name, err)
		}
		sent, inside := usage(t, srv)
		if call.plain {
			if all := listCalls(inside); len(sent) > 0 || all != "EXISTS GET SET XADD" {
				t.Errorf("%s: %s takes %v and %s, want no script", what, call.name, sent, all)
			}
			continue
		}
		if !maps.Equal(sent, map[string]int{"evalsha": 1}) {
			t.Errorf("%s: %s takes %v, want one EVALSHA", what, call.name, sent)
		}
		t.Logf("%s %-7s  1 sent, %d in the script: %s", what, call.name, countCalls(inside), listCalls(inside))
	}
}

// Without scripts there are more commands, in few trips.
func TestScriptlessCommandsOfEachCall(t *testing.T) {
	srv := noScripts(t)
	b, relay := openRelayed(t, srv.Addr(), Options{})
	warm(t, b, driver.Exclusive)
	want := map[string]string{
		"lock":    "1 trips: EXISTS GET SET XADD",
		"again":   "4 trips: EXEC EXISTS GET MGET MULTI PTTL SET×2 WATCH XADD×2",
		"refused": "2 trips: EXISTS GET PTTL SET TIME XADD",
		"renew":   "2 trips: EXEC MGET MULTI PEXPIRE PTTL WATCH",
		"unlock":  "2 trips: DEL EXEC LINDEX MGET MULTI PTTL PUBLISH WATCH",
	}
	usage(t, srv)
	for _, call := range callsOf(t, b, driver.Exclusive) {
		relay.trips.Store(0)
		if err := call.do(); !errors.Is(err, call.want) {
			t.Fatalf("%s: %v", call.name, err)
		}
		_, sent := usage(t, srv)
		if got := fmt.Sprintf("%d trips: %s", relay.trips.Load(), listCalls(sent)); got != want[call.name] {
			t.Errorf("%s takes %s; want %s", call.name, got, want[call.name])
		}
	}
}

type lockCall struct {
	name  string
	do    func() error
	want  error
	plain bool // no script is needed
}

// callsOf is a lock's life, with an attempt that is refused.
func callsOf(t *testing.T, b *Backend, mode driver.Mode) []lockCall {
	r := request("", mode)
	other := request(r.Name, mode)
	if mode == driver.Read {
		other.Mode = driver.Write // readers let each other in
	}
	r.Limit, other.Limit = 1, 1
	return []lockCall{
		{name: "lock", do: taking(t, b, r), plain: mode.Alone() && !b.layout.Redisson},
		{name: "again", do: taking(t, b, r)},
		{name: "refused", do: taking(t, b, other), want: driver.ErrHeld},
		{name: "renew", do: func() error { return b.Renew(t.Context(), []driver.Hold{r.Hold})[0] }},
		{name: "unlock", do: giving(t, b, r)},
	}
}

// fairCalls returns the calls in the life of a lock that one client holds and another is queued
// for.
func fairCalls(t *testing.T, b *Backend) []lockCall {
	r := request("", driver.Exclusive)
	next := request(r.Name, driver.Exclusive)
	r.Queue, next.Queue = true, true
	return []lockCall{
		{name: "lock", do: taking(t, b, r), plain: !b.layout.Redisson},
		{name: "stand", do: taking(t, b, next), want: driver.ErrHeld},
		{name: "stay", do: taking(t, b, next), want: driver.ErrHeld},
		{name: "unlock", do: giving(t, b, r)},
		{name: "turn", do: taking(t, b, next)},
		{name: "unlock", do: giving(t, b, next)},
	}
}

func taking(t *testing.T, b *Backend, r driver.Request) func() error {
	return func() error { _, err := b.Acquire(t.Context(), r); return err }
}

func giving(t *testing.T, b *Backend, r driver.Request) func() error {
	return func() error { return b.Release(t.Context(), r.Hold) }
}

func countCalls(calls map[string]int) (n int) {
	for _, c := range calls {
		n += c
	}
	return n
}

func listCalls(calls map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		part := strings.ToUpper(name)
		if calls[name] > 1 {
			part += fmt.Sprintf("×%d", calls[name])
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " ")
}
