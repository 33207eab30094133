package etcd

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A child is a process that holds a lock by distlock and is going to be killed.
const (
	childEnv = "DISTLOCK_INTEROP_CHILD" // its URL
	nameEnv  = "DISTLOCK_INTEROP_NAME"  // what it holds
)

func startChild(t *testing.T, d *deployment, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+d.url(), nameEnv+"="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testserver.Spawn(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "holds\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return cmd
}

// untilKilled is the child.
func untilKilled(url, name string) {
	if err := hold(context.Background(), url, name); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("holds")
	select {}
}

func hold(ctx context.Context, url, name string) error {
	c, err := distlock.Open(ctx, url, &distlock.Options{TTL: shortLife})
	if err != nil {
		return err
	}
	_, err = c.Mutex(name).Lock(ctx)
	return err
}
