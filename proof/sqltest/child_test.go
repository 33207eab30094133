package sqltest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// childEnv names the variable with a child's backend URL. A child is a process that holds the lock
// until it is killed.
const childEnv = "DISTLOCK_SQLTEST_CHILD"

// child starts a child, and returns its fence.
func (s *scene) child() (cmd *exec.Cmd, fence uint64) {
	t := s.t
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+s.url(s.user()))
	cmd.Stderr = os.Stderr
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, testserver.Spawn(cmd))
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, bad := fmt.Sscanf(line, "holds with fence %d\n", &fence); bad != nil {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return cmd, fence
}

// holdUntilKilled runs the child.
func holdUntilKilled(url string) {
	fence, err := hold(context.Background(), url)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Printf("holds with fence %d\n", fence)
	select {}
}

func hold(ctx context.Context, url string) (fence uint64, err error) {
	c, err := distlock.Open(ctx, url, &distlock.Options{TTL: life})
	if err != nil {
		return 0, err
	}
	l, err := c.Mutex(lockName).Lock(ctx)
	if err != nil {
		return 0, err
	}
	return l.Fence(), nil
}
