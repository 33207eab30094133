//go:build linux

package chaos

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/trace"
)

// traceForm is short: what TLC looks at grows with the number of calls whose outcome is not known.
var traceForm = form{rounds: 2, most: 2, heals: 2 * time.Minute, starves: 3 * time.Minute, goroutines: 2, trace: true}

// traced are cells whose traces the specification of the store must allow. In ZooKeeper a hold ends with its session, of which a
// trace says nothing.
var traced = strings.Fields(`
	redis-aof-kill-client redis-aof-pause-client redis-aof-bounce-server redis-aof-pause-server redis-aof-cut redis-aof-delay
	redis-aof-lose-requests redis-aof-lose-answers redlock-one-bounce-server etcd-kill-client etcd-lose-answers
	mariadb-kill-client mariadb-lose-answers postgres-kill-client postgres-lose-answers
	sqlite-kill-client sqlite-pause-client served-kill-server served-lose-answers
`)

// forgetful are cells whose store does what the specification does not allow.
var forgetful = strings.Fields(`redis-aof-flush-all redis-memory-bounce-server`)

// TestLongTraces runs cells, and lets the specification in model judge as well what workers asked a store, and what it answered,
// while things failed.
func TestLongTraces(t *testing.T) {
	slots := make(chan struct{}, shortForm.atOnce)
	cells := map[string]cell{}
	for _, c := range allCells() {
		cells[c.id()] = c
	}
	for _, id := range slices.Concat(traced, forgetful) {
		c, wrong := cells[id], slices.Contains(forgetful, id)
		t.Run(id, func(t *testing.T) {
			if c.start == nil {
				t.Fatal("there is no such cell")
			}
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			for tries := 1; !c.traceIsJudged(t, !wrong, tries == 6); tries++ {
			}
		})
	}
}

// traceIsJudged runs the cell once, and fails unless its trace is allowed, or refused. On a machine that kept a worker or a proxy from
// running, when something happened is not known well enough, and a store may forget when nobody notices: false says to try again, unless
// it is the last time. What is to be allowed is then judged as exactly as the machine was.
func (c *cell) traceIsJudged(t *testing.T, allowed, last bool) bool {
	e := c.run(t, traceForm)
	stall := max(e.stall, e.own)
	known := c.ttl / 10
	if allowed && last {
		known += stall
	}
	v := c.judgeTrace(t, e, known)
	if allowed {
		_, faults := c.judge(traceForm, e)
		for _, fault := range faults {
			t.Error(fault)
		}
	}
	t.Logf("%d events, %d calls without an answer, %d leases: %s", len(e.trace), trace.Unanswered(e.trace), len(e.holds), v.States())
	if v.Allowed == allowed {
		return true
	}
	if (!allowed || stall > c.ttl/20) && !last {
		return false
	}
	file := filepath.Join(os.TempDir(), "distlock-"+c.id()+".tla")
	_ = os.WriteFile(file, []byte(trace.Module(e.trace)), 0o600)
	t.Errorf("allowed: %v, to event %d of those in %s\n%s", v.Allowed, v.Reached, file, v.Output)
	return true
}

// judgeTrace says whether the specification allows what was recorded. When a request arrived is known to some time.
func (c *cell) judgeTrace(t *testing.T, e evidence, known time.Duration) trace.Verdict {
	slices.SortStableFunc(e.trace, func(a, b trace.Event) int { return cmp.Compare(a.At, b.At) })
	exact := trace.Store{Late: known, Early: known, Slack: known + c.more, Queues: trace.Unanswered(e.trace) <= 5, Passes: c.onRedis()}
	if c.what == pauseServer.what { // it finds requests when it goes on
		exact.Late += time.Duration(c.lasts * float64(c.ttl))
	}
	return trace.Judge(t, filepath.Join("..", "model"), exact, e.trace)
}

// onRedis reports whether the locks are on Redis, where one that seems free is taken before the queue is looked at.
func (c *cell) onRedis() bool {
	return slices.ContainsFunc([]string{"redis", "redlock", "served"}, func(of string) bool { return strings.HasPrefix(c.name, of) })
}
