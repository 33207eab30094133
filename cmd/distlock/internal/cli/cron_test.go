//go:build unix

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// ran returns the lines that the jobs of a test have written.
func ran(t *testing.T, log string) []string {
	t.Helper()
	text, err := os.ReadFile(log)
	if os.IsNotExist(err) {
		return nil
	}
	must.OK(t, err)
	return strings.Fields(string(text))
}

// holder returns the owner of a lock; "" if there is none.
func holder(t *testing.T, url, name string) string {
	t.Helper()
	var lock lockJSON
	eventually(t, "the store answers", func() bool {
		return json.Unmarshal([]byte(finish(t, url, "show", "--json", name).out.String()), &lock) == nil
	})
	if len(lock.Holders) == 0 {
		return ""
	}
	return lock.Holders[0].Owner
}

// stores are the kinds of stores, with how they keep a hold.
func stores() map[string]func(t *testing.T) string {
	return map[string]func(t *testing.T) string{
		"SQLite":     lockFile,
		"Redis":      func(t *testing.T) string { return testserver.Redis(t).URL() + "?prefix=cron:" },
		"etcd":       func(t *testing.T) string { return testserver.SharedEtcd(t).URL() },
		"ZooKeeper":  func(t *testing.T) string { return testserver.SharedZooKeeper(t).URL() },
		"PostgreSQL": func(t *testing.T) string { s := testserver.SharedPostgres(t); return created(s.Database(t), "") },
		"MariaDB":    func(t *testing.T) string { s := testserver.SharedMariaDB(t); return created(s.Database(t), "") },
	}
}

// created returns the URL of a database in which the table may be created.
func created(url, params string) string {
	sign := "?"
	if strings.Contains(url, "?") {
		sign = "&"
	}
	return strings.TrimSuffix(url+sign+"create=true&"+params, "&")
}

// A job that ends at once is not run again by a host that starts it while its tick is held, although the host that ran it is
// done. On a machine that is too slow for that the tick is over, and a longer one is tried.
func TestCronRunsOnOneHost(t *testing.T) {
	t.Parallel()
	for name, url := range stores() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, log := url(t), filepath.Join(t.TempDir(), "log")
			for n, every := 0, 10*time.Second; ; n, every = n+1, 2*every {
				job := fmt.Sprint("report", n)
				cron := []string{"cron", "--every", every.String(), job, "-c", "echo " + job + " >> " + log + "; exit 7"}
				first := start(t, url, cron...)
				for !slices.Contains(ran(t, log), job) {
					time.Sleep(5 * time.Millisecond)
				}
				owner := holder(t, url, job)
				second := finish(t, url, cron...)
				if owner == "" || holder(t, url, job) != owner || second.ProcessState.ExitCode() == exitUnreachable {
					first.code()
					if every > 2*time.Minute {
						t.Fatalf("each tick has ended when the other host starts: %v, %v", ran(t, log), second.ProcessState)
					}
					must.OK(t, os.Truncate(log, 0))
					continue
				}
				if text := second.out.String() + second.errors.String(); second.ProcessState.ExitCode() != 0 || text != "" {
					t.Errorf("a host that skips a tick ends with %v, and says %q", second.ProcessState, text)
				}
				first.must(7)
				if lines := ran(t, log); len(lines) != 1 {
					t.Errorf("it ran %d times", len(lines))
				}
				return
			}
		})
	}
}

// Five hosts whose clocks differ start a job at each tick; no two runs began within two thirds of the schedule, by
// the server's clock.
func TestCronOfAFleet(t *testing.T) {
	t.Parallel()
	const hosts, ticks, every = 5, 4, 3 * time.Second
	url, log := testserver.Redis(t).URL(), filepath.Join(t.TempDir(), "log")
	var all sync.WaitGroup
	begun := time.Now()
	for h := range hosts {
		all.Go(func() {
			for n := range ticks {
				time.Sleep(time.Until(begun.Add(time.Duration(n)*every + time.Duration(h)*every/10)))
				p := command(t, url, "cron", "--every", every.String(), "report", "-c", "echo $DISTLOCK_FENCE >> "+log)
				// On a machine that stands still for seconds a run loses its lock, or has no answer: no run more.
				err := p.Run()
				if code := p.ProcessState.ExitCode(); err != nil && code != exitLost && code != exitUnreachable {
					t.Errorf("host %d, tick %d: %v, %s", h, n, err, p.errors.String())
				}
			}
		})
	}
	all.Wait()
	var fences []uint64
	for _, line := range ran(t, log) {
		fences = append(fences, must.Get(strconv.ParseUint(line, 10, 64))(t))
	}
	slices.Sort(fences)
	if len(fences) == 0 {
		t.Error("no host ran it")
	}
	for i := range len(fences) - 1 {
		// A fence of Redis is the server's clock in µs, shifted by ten bits.
		if apart := time.Duration(fences[i+1]>>10-fences[i]>>10) * time.Microsecond; apart < every*2/3 {
			t.Errorf("two runs are %v apart", apart)
		}
	}
}

// The tick of a host that is killed in the middle is not run by another.
func TestCronOfAHostThatIsKilled(t *testing.T) {
	t.Parallel()
	url, log := lockFile(t), filepath.Join(t.TempDir(), "log")
	p := start(t, url, "cron", "--every", "1h", "report", "-c", "echo ran >> "+log+"; exec sleep 600")
	for len(ran(t, log)) == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	owner := holder(t, url, "report")
	must.OK(t, p.Process.Kill())
	p.code()
	other := finishWith(t, url, 0, "cron", "-v", "--every", "1h", "report", "-c", "echo ran >> "+log)
	if holder(t, url, "report") != owner {
		return // the machine is so slow that the hold has ended, after 90 s
	}
	if lines := ran(t, log); len(lines) != 1 || !strings.Contains(other.errors.String(), "skipped: ") {
		t.Errorf("it ran %d times; %s", len(lines), other.errors.String())
	}
}

// A line for a shell needs no -- and no sh.
func TestShellLine(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	p := finishWith(t, url, 3, "run", "a", "b", "-c", `echo "$DISTLOCK_NAME" | tr '\n' ' '; exit 3`)
	if got := p.out.String(); strings.TrimSpace(got) != "a b" {
		t.Errorf("got %q", got)
	}
	p = finishWith(t, url, 0, "cron", "-v", "a:cron", "-c", "true")
	if got := p.errors.String(); !strings.Contains(got, "stays locked for another") {
		t.Errorf("got %q", got)
	}
}
