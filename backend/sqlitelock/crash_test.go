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
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
)

// TestProcesses has several processes increment one number under a lock.
func TestProcesses(t *testing.T) {
	const processes, turns = 4, 200
	path := lockFile(t)
	counter := filepath.Join(t.TempDir(), "counter")
	must.OK(t, os.WriteFile(counter, []byte("0 0"), 0o600))
	var all []*child
	for range processes {
		all = append(all, spawn(t, "count", path, counter, strconv.Itoa(turns)))
	}
	for _, c := range all {
		c.finish(t)
	}
	text := must.Get(os.ReadFile(counter))(t)
	if got, want := string(text), strconv.Itoa(processes*turns)+" "; len(got) < len(want) || got[:len(want)] != want {
		t.Errorf("counted to %q; want %s", got, want)
	}
}

func TestKilledHolder(t *testing.T) {
	path := lockFile(t)
	b := connect(t, path)
	c := spawn(t, "hold", path, "x", "4s")
	first := must.Get(strconv.ParseUint(c.line(t), 10, 64))(t)
	held := refused(t, b, request("x", driver.Exclusive, long))
	c.kill(t)
	if held.Retry <= 0 || held.Retry > 4*time.Second {
		t.Fatalf("Retry %v; want the rest of 4s", held.Retry)
	}
	g := must.Get(poll(t.Context(), b, request("x", driver.Exclusive, long)))(t)
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
	must.OK(t, <-got, "the dead process's transaction still blocks")
	var check string
	if err := b.store.db.QueryRow("PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
		t.Errorf("integrity: %s, %v", check, err)
	}
}

// openAt opens path with its own clock, as after a reboot.
func openAt(t *testing.T, path, boot string, now int64) *Backend {
	t.Helper()
	b := must.Get(tryOpenAt(t, path, boot, now))(t)
	t.Cleanup(func() {
		expect.OK(t, b.Close())
	})
	return b
}

func tryOpenAt(t *testing.T, path, boot string, now int64) (*Backend, error) {
	t.Helper()
	o := must.Get((*Options)(nil).withDefaults())(t)
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
	must.OK(t, b.Close())
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
	expect.OK(t, host.Renew(t.Context(), []driver.Hold{r.Hold})[0], "the host's hold")
	refused(t, host, request("y", driver.Exclusive, long))
	for _, b := range []*Backend{host, container} {
		must.OK(t, b.Close())
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
	b.store.w.clock.now = func() int64 { return now }
	r := request("x", driver.Exclusive, time.Minute)
	take(t, b, r)
	for now < int64(time.Hour) {
		now += int64(30 * time.Second)
		must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
	}
	must.OK(t, b.Close())
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
	expect.OK(t, here.Renew(t.Context(), []driver.Hold{r.Hold})[0])
}

// A file of an older form is refused, and the error says what to do.
func TestFileOfOlderVersion(t *testing.T) {
	path := lockFile(t)
	takeAt(t, path, "first boot", int64(time.Hour), request("x", driver.Exclusive, long))
	db := must.Get(sql.Open("sqlite", "file:"+path))(t)
	must.Get(db.Exec("PRAGMA user_version=1"))(t)
	must.OK(t, db.Close())
	locktest.OpenFails(t, Open, "sqlite:"+path, true, "older distlock", "remove the file")
}

// TestTwoHosts lets another host, whose locks the kernel here does not see, take the file over.
func TestTwoHosts(t *testing.T) {
	path := lockFile(t)
	here := openAt(t, path, "here", int64(time.Hour))
	r := request("x", driver.Exclusive, long)
	take(t, here, r)
	must.Get(here.store.db.Exec("UPDATE meta SET boot = 'there', seen = 1"))(t)
	wantIs(t, here.Renew(t.Context(), []driver.Hold{r.Hold})[0], errAnotherBoot)
	if _, err := here.Acquire(t.Context(), request("y", driver.Exclusive, long)); !errors.Is(err, errAnotherBoot) || !unknown(err) {
		t.Errorf("acquire: %v; want %v", err, errAnotherBoot)
	}
	expect.Be(t, expect.Err(here.Inspect(t.Context(), "x")), errAnotherBoot, "inspect")
	expect.Be(t, here.List(t.Context(), "", nil), errAnotherBoot, "list")
}
