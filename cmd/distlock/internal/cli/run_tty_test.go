//go:build linux

package cli

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/internal/testkit/must"
)

// terminals makes a pseudo terminal: what is written to keys is typed, and screen is
// what is shown.
func terminals(t *testing.T) (keys *os.File, screen *output, tty *os.File) {
	t.Helper()
	keys = must.Get(os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { keys.Close() })
	fd := int(keys.Fd())
	must.OK(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n := must.Get(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	tty = must.Get(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { tty.Close() })
	screen = &output{}
	go io.Copy(screen, keys)
	return keys, screen, tty
}

// atTerminal puts a process in a session of its own at the terminal.
func (p *process) atTerminal(tty *os.File) *process {
	p.Stdin, p.Stdout, p.Stderr = tty, tty, tty
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p.begin()
	return p
}

// atShell is atTerminal for a shell with job control that runs a script.
func atShell(t *testing.T, url, script string, tty *os.File) *process {
	t.Helper()
	p := command(t, url)
	p.Path, p.Args = "/bin/sh", []string{"sh", "-mc", script}
	return p.atTerminal(tty)
}

func press(t *testing.T, keys *os.File, text string) {
	t.Helper()
	must.Get(keys.WriteString(text))(t)
}

func TestNoticeWhileWaiting(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	first, release := hold(t, url, "door")
	_, screen, tty := terminals(t)
	p := command(t, url, "run", "door", "--", "echo", "ran").atTerminal(tty)
	screen.await(t, fmt.Sprintf(`waiting for "door", held by "sh" pid %d on `, first.Process.Pid))
	release()
	first.must(0)
	p.must(0)
	if text := screen.await(t, "ran"); !strings.Contains(text, "\r\x1b[Kran") {
		t.Errorf("the notice stays: %q", text)
	}
}

func TestInterruptWhileWaiting(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	first, release := hold(t, url, "door")
	keys, screen, tty := terminals(t)
	p := command(t, url, "run", "door", "--", "echo", "ran").atTerminal(tty)
	screen.await(t, "waiting for")
	press(t, keys, "\x03")
	p.mustBeInterrupted()
	release()
	first.must(0)
}

// mustBeInterrupted wants that SIGINT ended the process, as shells want to see it before they end, too.
func (p *process) mustBeInterrupted() {
	p.t.Helper()
	p.code()
	if by := p.ProcessState.Sys().(syscall.WaitStatus); !by.Signaled() || by.Signal() != syscall.SIGINT {
		p.t.Errorf("it ended with %v; want SIGINT", p.ProcessState)
	}
}

// Ctrl-C ends the script that calls distlock, as it does where the script calls the command itself.
func TestInterruptEndsTheScript(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"sh", "bash"} {
		for what, first := range map[string]string{
			"command":        `"$SELF" run a -- sh -c 'echo rea""dy; exec sleep 1000'`,
			"behind a pipe":  `: | "$SELF" run a -- sh -c 'echo rea""dy; exec sleep 1000'`,
			"nested":         `"$SELF" run a -- sh -c '"$SELF" run c -- sh -c "echo rea\"\"dy; exec sleep 1000"; echo sec""ond'`,
			"while it waits": `"$SELF" run door -- true`,
		} {
			t.Run(shell+" "+what, func(t *testing.T) {
				t.Parallel()
				if _, err := exec.LookPath(shell); err != nil {
					t.Skip(err)
				}
				url, ready := lockFile(t), "ready"
				if what == "while it waits" {
					other, release := hold(t, url, "door")
					defer other.must(0)
					defer release()
					ready = "waiting for"
				}
				keys, screen, tty := terminals(t)
				p := command(t, url)
				p.Env = append(p.Env, "SCRIPT="+first+`; "$SELF" run b -- sh -c 'echo sec""ond'`)
				p.Path, p.Args = "/bin/sh", []string{"sh", "-c", `trap : INT; ` + shell + ` -c "$SCRIPT"; echo "code-$?"`}
				p.atTerminal(tty)
				screen.await(t, ready)
				press(t, keys, "\x03")
				if text := screen.await(t, "code-"); strings.Contains(text, "second") || !strings.Contains(text, "code-130") {
					t.Errorf("the script went on: %q", text)
				}
				p.must(0)
				finishWith(t, url, 0, "run", "--no-wait", "a", "--", "true")
			})
		}
	}
}

func TestInterruptAtTerminal(t *testing.T) {
	t.Parallel()
	keys, screen, tty := terminals(t)
	p := command(t, lockFile(t), "run", "x", "--", "sh", "-c", `trap "exit 5" INT; echo rea""dy; while :; do sleep 0.01; done`).atTerminal(tty)
	screen.await(t, "ready")
	press(t, keys, "\x03")
	p.must(5)
}

// The command reads from the terminal, and the shell's group stands before it again
// afterwards.
func TestReadsFromTerminal(t *testing.T) {
	t.Parallel()
	keys, screen, tty := terminals(t)
	p := atShell(t, lockFile(t), `"$SELF" run x -- sh -c 'echo rea""dy; read line; echo "got-$line"'; read line; echo "then-$line"`, tty)
	screen.await(t, "ready")
	press(t, keys, "one\n")
	screen.await(t, "got-one")
	press(t, keys, "two\n")
	screen.await(t, "then-two")
	p.must(0)
}

func TestStopAtTerminal(t *testing.T) {
	t.Parallel()
	keys, screen, tty := terminals(t)
	p := atShell(t, lockFile(t), `"$SELF" run x -- sh -c 'echo rea""dy; read line; echo "got-$line"'; echo "stop""ped"; fg; echo "code-$?"`, tty)
	screen.await(t, "ready")
	press(t, keys, "\x1a")
	screen.await(t, "stopped")
	press(t, keys, "one\n")
	screen.await(t, "got-one")
	screen.await(t, "code-0")
	p.must(0)
}

// A job that is continued too late is killed.
func TestStopAtTerminalTooLong(t *testing.T) {
	t.Parallel()
	withTTL(t, time.Second, func(ttl time.Duration) error {
		keys, screen, tty := terminals(t)
		script := `"$SELF" run --ttl ` + ttl.String() + ` x -- sh -c 'echo rea""dy; read line; echo g""ot it'; "$SELF" run x -- true; fg; echo "code-$?"`
		p := atShell(t, lockFile(t), script, tty)
		screen.awaitThat(t, "the command, or its end", func(text string) bool { return strings.Contains(text, "ready") || strings.Contains(text, "code-") })
		press(t, keys, "\x1a")
		text := screen.await(t, "code-")
		if p.must(0); !strings.Contains(text, "code-76") || strings.Contains(text, "got it") {
			return fmt.Errorf("got %q", text)
		}
		return nil
	})
}

// Where no shell could continue it, as in a container, nothing stays stopped.
func TestStopWithoutShell(t *testing.T) {
	t.Parallel()
	for _, script := range []string{`exec "$SELF" run x -- sh -c "$COMMAND"`, `"$SELF" run x -- sh -c "$COMMAND"; true`} {
		keys, screen, tty := terminals(t)
		p := command(t, lockFile(t))
		p.Env = append(p.Env, `COMMAND=echo rea""dy; read line; echo "got-$line"`)
		p.Path, p.Args = "/bin/sh", []string{"sh", "-c", script}
		p.atTerminal(tty)
		screen.await(t, "ready")
		press(t, keys, "\x1a")
		press(t, keys, "one\n")
		screen.await(t, "got-one")
		p.must(0)
	}
}

// A command whose standard input is a pipe or a file gets the terminal once it reads from it.
func TestPromptBehindAPipe(t *testing.T) {
	t.Parallel()
	for _, script := range []string{`echo x | "$SELF" run x -- sh -c "$COMMAND"`, `"$SELF" run x -- sh -c "$COMMAND" </dev/null`} {
		keys, screen, tty := terminals(t)
		p := atShell(t, lockFile(t), `COMMAND='echo rea""dy; read line </dev/tty; echo "got-$line"'; `+script+`; read line; echo "then-$line"`, tty)
		screen.await(t, "ready")
		press(t, keys, "one\n")
		screen.await(t, "got-one")
		press(t, keys, "two\n")
		screen.await(t, "then-two")
		p.must(0)
	}
}

// A pager that reads a key before it reads on does not wait for the command, which waits for the pager.
func TestPagerOfACommandThatWrites(t *testing.T) {
	t.Parallel()
	keys, screen, tty := terminals(t)
	p := command(t, lockFile(t))
	p.Path, p.Args = "/bin/bash", []string{"bash", "-mc", `cd ` + t.TempDir() + `; "$SELF" run x -- sh -c 'touch ready; head -c 200000 /dev/zero' |
		(until [ -e ready ]; do sleep 0.02; done; read line </dev/tty; echo "got-$line-$(wc -c)" >/dev/tty)`}
	p.atTerminal(tty)
	press(t, keys, "one\n")
	screen.await(t, "got-one-200000")
	p.must(0)
}

// What a command has started ends with it when the lock is lost, also in another group than the terminal's.
func TestLossAtTerminalEndsAll(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	_, screen, tty := terminals(t)
	p := atShell(t, url, `"$SELF" run --ttl 15s x -- sh -c 'setsid sh -c "trap \"\" HUP TERM; echo \"pid-\$\$-\"; while :; do sleep 0.01; done" & trap "" TERM; wait; wait'; echo "code-$?"`, tty)
	text := screen.awaitThat(t, "the process", func(text string) bool { return strings.Count(text, "-") >= 2 })
	pid := strings.Split(text, "-")[1]
	finishWith(t, url, 0, "unlock", "--force", "x")
	screen.await(t, "code-76")
	eventually(t, "the process is gone", func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
	p.must(0)
}

// In the background the terminal is left to whom it belongs.
func TestInBackground(t *testing.T) {
	t.Parallel()
	keys, screen, tty := terminals(t)
	p := atShell(t, lockFile(t), `"$SELF" run x -- sh -c 'echo "back""ground"' & read line; echo "got-$line"; wait`, tty)
	screen.await(t, "background")
	press(t, keys, "one\n")
	screen.await(t, "got-one")
	p.must(0)
}

// An interrupt ends the looks early, and what was seen is printed.
func TestAdviseIsInterrupted(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	first, release := hold(t, url, "door")
	_, screen, tty := terminals(t)
	p := command(t, url, "advise", "--every", "10ms")
	p.Stderr = tty
	p.begin()
	screen.await(t, "looked at 1 locks, ")
	p.Process.Signal(os.Interrupt)
	if out := p.must(0).out.String(); !strings.Contains(out, "door") {
		t.Errorf("got %s", out)
	}
	release()
	first.must(0)
}

// The command of each term reads from the terminal. Ctrl-C ends elect with its command.
func TestElectAtTerminal(t *testing.T) {
	t.Parallel()
	keys, screen, tty := terminals(t)
	p := atShell(t, lockFile(t), `"$SELF" elect --again x -- sh -c 'echo rea""dy; read line; echo "got-$line"'; echo "code-$?"`, tty)
	screen.await(t, "ready")
	press(t, keys, "one\n")
	screen.await(t, "got-one")
	screen.awaitThat(t, "the second term", func(text string) bool { return strings.Count(text, "ready") == 2 })
	press(t, keys, "two\n")
	screen.await(t, "got-two")
	screen.awaitThat(t, "the third term", func(text string) bool { return strings.Count(text, "ready") == 3 })
	press(t, keys, "\x03")
	p.mustBeInterrupted()
}

// Ctrl-Z stops a candidate that led before, as it stops one that did not.
func TestStopBetweenTerms(t *testing.T) {
	t.Parallel()
	keys, screen, tty := terminals(t)
	p := atShell(t, lockFile(t), `"$SELF" elect --again x -- sh -c 'echo rea""dy'; echo "stop""ped"; fg; echo "code-$?"`, tty)
	ended := func() int { return strings.Count(screen.String(), "campaigning again") }
	screen.await(t, "campaigning again")
	press(t, keys, "\x1a")
	screen.await(t, "stopped")
	before := ended()
	screen.awaitThat(t, "the end of another term", func(string) bool { return ended() > before })
	press(t, keys, "\x03")
	p.mustBeInterrupted()
}

// Processes that the command leaves behind do not stay zombies where distlock is the first process of a container.
func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	p := command(t, lockFile(t), "run", "x", "--", "sh", "-c", `sh -c 'sleep 0.1 & echo "orphan $! ready"'; cat`)
	p.Env = append(p.Env, asReaper+"=1")
	in := p.input()
	p.begin()
	orphan := strings.Fields(p.out.await(t, "ready"))[1]
	eventually(t, "the orphan is gone", func() bool {
		_, err := os.Stat("/proc/" + orphan)
		return err != nil
	})
	in.Close()
	p.must(0)
}

// Processes of the group that have ended do not count, though the first process of the container does not collect them.
func TestZombiesOfTheGroup(t *testing.T) {
	t.Parallel()
	url := askedFile(t)
	p := command(t, url, "run", "--on-ask", "term", "x", "--", "sh", "-c", "sleep 1000 & echo ready; wait")
	p.Env = append(p.Env, belowReaper+"=1")
	p.begin()
	p.out.await(t, "ready")
	finishWith(t, url, 0, "unlock", "--ask", "x")
	p.must(143)
}

// Ctrl-C ends the wait for the rest of the group.
func TestKeysEndTheWaitForTheGroup(t *testing.T) {
	t.Parallel()
	url, dir := askedFile(t), t.TempDir()
	keys, screen, tty := terminals(t)
	p := command(t, url, "run", "--on-ask", "term", "x", "--", "sh", "-c", `(trap "" TERM; echo rea""dy; while [ -e `+dir+` ]; do sleep 0.01; done) & wait`).atTerminal(tty)
	screen.await(t, "ready")
	finishWith(t, url, 0, "unlock", "--ask", "x")
	screen.await(t, "another signal ends the wait")
	press(t, keys, "\x03")
	p.must(143)
}

// asReaper makes the test binary adopt orphans, as the first process of a container does.
const asReaper = "CLI_TEST_AS_REAPER"

// belowReaper makes it do so and collect none, while its own command runs below it.
const belowReaper = "CLI_TEST_BELOW_REAPER"

func init() {
	below := os.Getenv(belowReaper) != ""
	if !below && os.Getenv(asReaper) == "" {
		return
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	if below {
		os.Unsetenv(belowReaper)
		c := exec.Command(os.Args[0], os.Args[1:]...)
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
		_ = c.Run()
		os.Exit(c.ProcessState.ExitCode())
	}
}

// When another user asks for the lock, all that the command has started is told: a shell would not tell its children.
func TestAskAtTerminalReachesAll(t *testing.T) {
	t.Parallel()
	url := askedFile(t)
	_, screen, tty := terminals(t)
	p := atShell(t, url, `"$SELF" run x -- sh -c 'sh -c "trap \"echo cleaned; exit\" TERM; echo rea\"\"dy; while :; do sleep 0.01; done"; true'; echo "code-$?"`, tty)
	screen.await(t, "ready")
	finishWith(t, url, 0, "unlock", "--ask", "x")
	screen.await(t, "code-")
	if text := screen.String(); !strings.Contains(text, "cleaned") {
		t.Errorf("got %q", text)
	}
	p.must(0)
}

// So is what the command has left when SIGTERM has ended it.
func TestSignalAtTerminalReachesWhatIsLeft(t *testing.T) {
	t.Parallel()
	_, screen, tty := terminals(t)
	p := command(t, lockFile(t), "run", "x", "--", "sh", "-c", `sh -c 'echo rea""dy; while :; do sleep 0.01; done'; true`).atTerminal(tty)
	screen.await(t, "ready")
	p.Process.Signal(syscall.SIGTERM)
	p.must(128 + 15)
}

// The terminal sends its keys to its foreground only: elsewhere an interrupt comes from a program, which does not know the command.
func TestInterruptInBackground(t *testing.T) {
	t.Parallel()
	keys, screen, tty := terminals(t)
	p := atShell(t, lockFile(t), `"$SELF" run x -- sh -c 'trap "exit 5" INT; echo "rea""dy"; while :; do sleep 0.01; done' &
		read line; kill -INT $!; wait $!; echo "code-$?"`, tty)
	screen.await(t, "ready")
	press(t, keys, "\n")
	screen.await(t, "code-5")
	p.must(0)
}

// A loss does not end what the program before distlock has started.
func TestLossLeavesEarlierChildren(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	p := command(t, url)
	p.Path, p.Args = "/bin/sh", []string{"sh", "-c", `sleep 1000 >/dev/null 2>&1 & echo "pid-$!-"; exec "$SELF" run --ttl 15s x -- sh -c 'echo ready; exec sleep 1000'`}
	p.begin()
	pid := must.Get(strconv.Atoi(strings.Split(p.out.await(t, "ready"), "-")[1]))(t)
	defer syscall.Kill(pid, syscall.SIGKILL)
	finishWith(t, url, 0, "unlock", "--force", "x")
	p.must(exitLost)
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(stat), ") Z ") {
		t.Errorf("it has ended: %s %v", stat, err)
	}
}
