package sqlitelock

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// TestProcesses has several processes increment one number under a lock.
func TestProcesses(t *testing.T) {
	const processes, turns = 4, 200
	path := lockFile(t)
	counter := filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(counter, []byte("0 0"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all []*child
	for range processes {
		all = append(all, spawn(t, "count", path, counter, strconv.Itoa(turns)))
	}
	for _, c := range all {
		c.finish(t)
	}
	text, err := os.ReadFile(counter)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(text), strconv.Itoa(processes*turns)+" "; len(got) < len(want) || got[:len(want)] != want {
		t.Errorf("counted to %q; want %s", got, want)
	}
}

func TestKilledHolder(t *testing.T) {
	path := lockFile(t)
	b := connect(t, path)
	c := spawn(t, "hold", path, "x", "2s")
	first, err := strconv.ParseUint(c.line(t), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	held := refused(t, b, request("x", driver.Exclusive, long))
	c.kill(t)
	if held.Retry <= 0 || held.Retry > 2*time.Second {
		t.Fatalf("Retry %v; want the rest of 2s", held.Retry)
	}
	g, err := poll(t.Context(), b, request("x", driver.Exclusive, long))
	if err != nil {
		t.Fatal(err)
	}
	if g.Fence <= first {
		t.Errorf("fence %d after %d", g.Fence, first)
	}
}

// TestKilledInTransaction kills a process that has begun to take a lock.
func TestKilledInTransaction(t *testing.T) {
	path := lockFile(t)
	b := connect(t, path)
	c := spawn(t, "stuck", path, "x")
	c.line(t)
	got := make(chan error, 1)
	r := request("x", driver.Exclusive, long)
	go func() {
		_, err := b.Acquire(t.Context(), r)
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("acquired beside an open transaction: %v", err)
	default:
	}
	c.kill(t)
	if err := <-got; err != nil {
		t.Fatalf("the dead process's transaction still blocks: %v", err)
	}
	var check string
	if err := b.db.QueryRow("PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
		t.Errorf("integrity: %s, %v", check, err)
	}
}

// openAt opens path with its own clock, as after a reboot.
func openAt(t *testing.T, path, boot string, now int64) *Backend {
	t.Helper()
	o, err := (*Options)(nil).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	b, err := open(t.Context(), path, o, clock{boot: boot, now: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestReboot(t *testing.T) {
	path := lockFile(t)
	before := openAt(t, path, "first boot", int64(100*time.Hour))
	r := request("x", driver.Exclusive, long)
	was := take(t, before, r)
	after := openAt(t, path, "second boot", int64(time.Second))
	if info, err := after.Inspect(t.Context(), "x"); err != nil || len(info.Holders) != 0 {
		t.Errorf("a hold of an earlier boot lives: %+v, %v", info, err)
	}
	now := take(t, after, request("x", driver.Exclusive, long))
	if now.Fence <= was.Last() {
		t.Errorf("fence %d after %d", now.Fence, was.Last())
	}
}

// TestTwoHosts opens the file under two boots at the same time.
func TestTwoHosts(t *testing.T) {
	path := lockFile(t)
	here := openAt(t, path, "here", int64(time.Hour))
	r := request("x", driver.Exclusive, long)
	take(t, here, r)
	openAt(t, path, "there", int64(time.Second))
	if _, err := here.Acquire(t.Context(), request("y", driver.Exclusive, long)); !errors.Is(err, errAnotherBoot) || !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("acquire: %v; want %v", err, errAnotherBoot)
	}
	if _, err := here.Inspect(t.Context(), "x"); !errors.Is(err, errAnotherBoot) {
		t.Errorf("inspect: %v; want %v", err, errAnotherBoot)
	}
	if err := here.List(t.Context(), "", nil); !errors.Is(err, errAnotherBoot) {
		t.Errorf("list: %v; want %v", err, errAnotherBoot)
	}
	wantIs(t, here.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrLost)
}
