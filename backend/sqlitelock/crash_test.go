package sqlitelock

import (
	"database/sql"
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
	b, err := tryOpenAt(t, path, boot, now)
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

func tryOpenAt(t *testing.T, path, boot string, now int64) (*Backend, error) {
	t.Helper()
	o, err := (*Options)(nil).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return open(t.Context(), path, o, clock{boot: boot, stops: true, now: func() int64 { return now }})
}

// TestReboot: a clock that is behind what the file has seen is the clock of another boot.
func TestReboot(t *testing.T) {
	for _, boot := range []string{"second boot", "first boot"} { // a container may have the same id for ever
		path := lockFile(t)
		r := request("x", driver.Exclusive, long)
		was := takeAt(t, path, "first boot", int64(100*time.Hour), r)
		after := openAt(t, path, boot, int64(time.Second))
		if info, err := after.Inspect(t.Context(), "x"); err != nil || len(info.Holders) != 0 {
			t.Errorf("a hold of an earlier boot lives: %+v, %v", info, err)
		}
		now := take(t, after, request("x", driver.Exclusive, long))
		if now.Fence <= was.Last() {
			t.Errorf("fence %d after %d", now.Fence, was.Last())
		}
	}
}

// takeAt takes a lock, and closes the backend.
func takeAt(t *testing.T, path, boot string, now int64, r driver.Request) driver.Grant {
	t.Helper()
	b := openAt(t, path, boot, now)
	g := take(t, b, r)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	return g
}

// TestOtherBootID: a container with a boot id of its own has the kernel and the holds of the others.
func TestOtherBootID(t *testing.T) {
	needGuards(t)
	path := lockFile(t)
	host := openAt(t, path, "host", int64(time.Hour))
	r := request("x", driver.Exclusive, long)
	take(t, host, r)
	container := openAt(t, path, "container", int64(time.Hour)+1)
	refused(t, container, request("x", driver.Exclusive, long))
	mine := request("y", driver.Exclusive, long)
	take(t, container, mine)
	if err := host.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Errorf("the host's hold: %v", err)
	}
	refused(t, host, request("y", driver.Exclusive, long))
	for _, b := range []*Backend{host, container} {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A detached hold outlives all processes.
	again := openAt(t, path, "container, started again", int64(time.Hour)+2)
	refused(t, again, request("y", driver.Exclusive, long))
	free(t, again, mine)
}

// TestRebootWithLateClock: a boot that lasts longer than the one before is not recognized; its claims end with their TTL.
func TestRebootWithLateClock(t *testing.T) {
	path := lockFile(t)
	r := request("x", driver.Exclusive, time.Minute)
	takeAt(t, path, "first boot", int64(time.Hour), r)
	after := openAt(t, path, "second boot", int64(time.Hour+time.Second))
	if held := refused(t, after, request("x", driver.Exclusive, long)); held.Retry > r.TTL {
		t.Errorf("Retry %v after a TTL of %v", held.Retry, r.TTL)
	}
}

// The record of the clock follows the renewals, so that a hold of months ends with its boot.
func TestRenewalsRecordTheClock(t *testing.T) {
	path := lockFile(t)
	b := openAt(t, path, "first boot", 0)
	now := int64(time.Second)
	b.w.clock.now = func() int64 { return now }
	r := request("x", driver.Exclusive, time.Minute)
	take(t, b, r)
	for now < int64(time.Hour) {
		now += int64(30 * time.Second)
		if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	after := openAt(t, path, "second boot", int64(time.Hour-time.Minute))
	take(t, after, request("x", driver.Exclusive, long))
}

// A clock behind that of a living process is a clock of its own: holds would end too early or too late.
func TestOtherClock(t *testing.T) {
	needGuards(t)
	path := lockFile(t)
	here := openAt(t, path, "here", int64(time.Hour))
	r := request("x", driver.Exclusive, long)
	take(t, here, r)
	for _, boot := range []string{"here", "there"} {
		_, err := tryOpenAt(t, path, boot, int64(time.Second))
		wantIs(t, err, errOtherClock)
		wantIs(t, err, driver.ErrInvalid)
	}
	if err := here.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Error(err)
	}
}

// TestFileOfOlderVersion adds the column seen.
func TestFileOfOlderVersion(t *testing.T) {
	for boot, held := range map[string]bool{"first boot": true, "second boot": false} {
		path := lockFile(t)
		r := request("x", driver.Exclusive, long)
		takeAt(t, path, "first boot", int64(time.Hour), r)
		db, err := sql.Open("sqlite", "file:"+path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("ALTER TABLE meta DROP COLUMN seen"); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		after := openAt(t, path, boot, int64(time.Hour+time.Second))
		if _, err := after.Acquire(t.Context(), request("x", driver.Exclusive, long)); errors.Is(err, driver.ErrHeld) != held {
			t.Errorf("%s: %v; want held=%t", boot, err, held)
		}
	}
}

// TestTwoHosts lets another host, whose locks the kernel here does not see, take the file over.
func TestTwoHosts(t *testing.T) {
	path := lockFile(t)
	here := openAt(t, path, "here", int64(time.Hour))
	r := request("x", driver.Exclusive, long)
	take(t, here, r)
	if _, err := here.db.Exec("DELETE FROM claims; UPDATE meta SET boot = 'there', seen = 1"); err != nil {
		t.Fatal(err)
	}
	if _, err := here.Acquire(t.Context(), request("y", driver.Exclusive, long)); !errors.Is(err, errAnotherBoot) || !unknown(err) {
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
