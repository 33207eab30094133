//go:build unix

package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/cmd/distlock/internal/job"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/wait"
)

// elect starts a candidate whose command prints its term and works until it is stopped.
func elect(t *testing.T, url string, flagsAndName ...string) *process {
	t.Helper()
	return start(t, url, append(append([]string{"elect"}, flagsAndName...), "--", "sh", "-c",
		`trap "exit 9" TERM; echo "fence $DISTLOCK_FENCE"; while :; do sleep 0.01; done`)...)
}

// leads waits until p leads its nth term, and returns the fence.
func (p *process) leads(n int) uint64 {
	p.t.Helper()
	var lines []string
	p.out.awaitThat(p.t, "term "+strconv.Itoa(n), func(text string) bool {
		lines = strings.Split(text, "\n")
		return len(lines) > n
	})
	return fenceIn(p.t, lines[n-1])
}

// awaitWaiter waits until a candidate waits.
func awaitWaiter(t *testing.T, url, name string) { awaitWaiters(t, url, name, 1) }

func awaitWaiters(t *testing.T, url, name string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d wait", n), func() bool {
		return strings.Contains(finish(t, url, "show", "--json", name).out.String(), fmt.Sprintf(`"waiter_count": %d`, n))
	})
}

// When the leader is killed, another candidate leads once the lock has expired.
func TestElectAfterKill(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	a := elect(t, url, "--ttl", "1s", "x")
	first := a.leads(1)
	b := elect(t, url, "x")
	a.send(syscall.SIGKILL)
	if second := b.leads(1); second <= first {
		t.Errorf("terms %d, then %d", first, second)
	}
	if runtime.GOOS == "linux" {
		a.must(-1) // its command, which has the output open, is gone too
	}
	b.send(syscall.SIGTERM)
	b.must(9)
}

// A leader that was stopped for longer than its TTL stops its command when it goes on, and campaigns
// again.
func TestElectAfterStop(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	a := elect(t, url, "--ttl", "1s", "x")
	first := a.leads(1)
	b := elect(t, url, "x")
	a.send(syscall.SIGSTOP)
	second := b.leads(1)
	a.send(syscall.SIGCONT)
	a.errors.await(t, "the lock was lost while sh ran")
	b.send(syscall.SIGTERM)
	b.must(9)
	a.out.awaitThat(t, "a term after the one of the other", func(text string) bool {
		terms := strings.Fields(text) // of a busy machine may have been some more
		last, err := strconv.ParseUint(terms[len(terms)-1], 10, 64)
		return err == nil && last > second
	})
	if second <= first {
		t.Errorf("terms %d, then %d", first, second)
	}
	a.send(syscall.SIGTERM)
	a.code()
}

// A leader that gets a signal to end resigns: the next one need not wait for its TTL.
func TestElectResigns(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	a := elect(t, url, "--ttl", "1h", "x")
	a.leads(1)
	b := elect(t, url, "--again", "x")
	a.send(syscall.SIGTERM)
	a.must(9)
	b.leads(1)
	b.send(syscall.SIGINT)
	b.must(128 + 2)
	if out := finish(t, url, "leader", "x").out.String(); out != "no leader\n" {
		t.Errorf("leader: %s", out)
	}
}

// A leader that is asked to step down ends its command, lets others lead, and campaigns again.
func TestElectStepsDown(t *testing.T) {
	t.Parallel()
	url := askedFile(t)
	a := elect(t, url, "x")
	first := a.leads(1)
	b := elect(t, url, "x")
	awaitWaiter(t, url, "x")
	finishWith(t, url, 0, "unlock", "--ask", "x")
	second := b.leads(1)
	awaitWaiter(t, url, "x")
	finishWith(t, url, 0, "unlock", "--ask", "x")
	third := a.leads(2)
	if second <= first || third <= second {
		t.Errorf("terms %d, %d, %d", first, second, third)
	}
	a.send(syscall.SIGTERM)
	a.must(9)
	b.leads(2)
	b.send(syscall.SIGTERM)
	b.must(9)
}

// A supervisor sees the end of the command, or with --again none.
func TestElectWhenTheCommandEnds(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	for code, command := range map[int]string{0: "exit 0", 7: "exit 7", 128 + 15: "kill $$", 128 + 9: "kill -9 $$"} {
		finishWith(t, url, code, "elect", "x", "--", "sh", "-c", command)
	}
	finishWith(t, url, exitNotFound, "elect", "--again", "x", "--", "no-such-command-anywhere")
	finishWith(t, url, 128+2, "elect", "--again", "x", "--", "sh", "-c", "kill -INT $$")
	finishWith(t, "redis://127.0.0.1:1", exitUnreachable, "elect", "--again", "x", "--", "true")

	p := start(t, url, "elect", "--again", "x", "--", "sh", "-c", `echo "fence $DISTLOCK_FENCE"; exit 3`)
	if a, b := p.leads(1), p.leads(2); b <= a {
		t.Errorf("terms %d, then %d", a, b)
	}
	p.errors.await(t, "sh ended with exit code 3; campaigning again")
	p.errors.awaitThat(t, "the end of the second term", func(text string) bool { return strings.Count(text, "campaigning again") >= 2 })
	p.send(syscall.SIGTERM)
	p.must(128 + 15)
}

// Signals that are meant for the command do not end a candidate that led before.
func TestElectIgnoresOtherSignals(t *testing.T) {
	t.Parallel()
	p := start(t, lockFile(t), "elect", "--again", "x", "--", "sh", "-c", `echo "fence $DISTLOCK_FENCE"`)
	p.leads(1)
	p.errors.await(t, "campaigning again")
	p.send(syscall.SIGUSR1)
	p.leads(2)
	p.send(syscall.SIGTERM)
	p.code()
}

// A signal that is no request to end, and that the command dies of, ends the term only.
func TestElectGoesOnAfterAnotherSignal(t *testing.T) {
	t.Parallel()
	p := start(t, lockFile(t), "elect", "--again", "x", "--", "sh", "-c", `echo "fence $DISTLOCK_FENCE"; exec sleep 1000`)
	p.leads(1)
	p.send(syscall.SIGUSR1)
	p.leads(2)
	p.send(syscall.SIGTERM)
	p.must(143)
}

// A candidate that led before ends as soon as one that did not, also if the server does not answer.
func TestElectEndsAtASilentServer(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	p := start(t, s.URL(), "elect", "--again", "x", "--", "sh", "-c", `echo "fence $DISTLOCK_FENCE"`)
	p.leads(1)
	p.errors.await(t, "campaigning again")
	_, releaseX := hold(t, s.URL(), "x")
	defer releaseX()
	patient, release := hold(t, s.URL(), "door")
	awaitWaiter(t, s.URL(), "x")
	s.Pause()
	release()
	p.send(syscall.SIGTERM)
	p.must(128 + 15)
	if text := patient.errors.String(); text != "" {
		t.Errorf("it took as long as one without a signal: %s", text)
	}
}

func TestElectInsideItself(t *testing.T) {
	t.Parallel()
	p := finishWith(t, lockFile(t), exitUsage, "elect", "x", "--", "sh", "-c", `"$SELF" elect x -- true`)
	if text := p.errors.String(); !strings.Contains(text, `elect: lock "x" is held by an outer distlock`) {
		t.Errorf("stderr: %q", text)
	}
}

func TestNextCampaign(t *testing.T) {
	for _, test := range []struct {
		what  string
		o     runOptions
		r     job.Result
		end   outcome
		want  outcome
		pause time.Duration
		says  string
	}{
		{"run", runOptions{verb: "run"}, job.Result{}, lost, over, 0, ""},
		{"an end", runOptions{}, job.Result{Code: 3}, exited, over, 0, ""},
		{"an end with --again", runOptions{again: true}, job.Result{Code: 3}, exited, exited, driver.TurnLife, "sh ended with exit code 3; campaigning again"},
		{"Ctrl-C with --again", runOptions{again: true}, job.Result{Code: 130}, exited, over, 0, ""},
		{"SIGTERM with --again", runOptions{again: true}, job.Result{Told: true}, exited, over, 0, ""},
		{"a request", runOptions{}, job.Result{Code: 143}, gaveWay, gaveWay, driver.TurnLife, ""},
		{"a request after SIGTERM", runOptions{}, job.Result{Told: true, Code: 143}, gaveWay, over, 0, ""},
		{"a loss", runOptions{}, job.Result{Code: 137}, lost, lost, 0, "exit code 137"},
		{"a loss after SIGTERM", runOptions{}, job.Result{Told: true, Code: 137}, lost, over, 0, ""},
		{"the end after an ignored loss", runOptions{onLoss: job.Ignore}, job.Result{}, lost, over, 0, ""},
	} {
		var says strings.Builder
		o := &test.o
		o.verb, o.command = cmp.Or(o.verb, "elect"), []string{"sh"}
		end := o.outcomeOf(test.r, test.end)
		if end != test.want {
			t.Errorf("%s: outcome %d, want %d", test.what, end, test.want)
		}
		if end == over {
			continue
		}
		acq := &acquirer{o: o, asked: wait.NewSignal()}
		acq.asked.Notify()
		pause := (&app{err: &says}).nextCampaign(acq, end, exit(test.r.Code, "exit code %d", test.r.Code))
		if pause != test.pause || !strings.Contains(says.String(), test.says) {
			t.Errorf("%s: a pause of %v, %q; want %v, %q", test.what, pause, says.String(), test.pause, test.says)
		}
		if len(acq.asked) > 0 {
			t.Errorf("%s: the next term has the request of this one", test.what)
		}
	}
}
