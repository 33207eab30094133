package redisson

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testserver"
)

// A child is a Go process that is going to be killed: it holds a lock of every kind, or
// it stands in line for a fair one.
const (
	childEnv = "DISTLOCK_INTEROP_CHILD" // its URL
	roleEnv  = "DISTLOCK_INTEROP_ROLE"  // "holds" or "stands"
	nameEnv  = "DISTLOCK_INTEROP_NAME"  // what it holds begins with, or what it stands in line for
)

func startChild(t *testing.T, d *deployment, role, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+d.url, roleEnv+"="+role, nameEnv+"="+name)
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
	if line, err := bufio.NewReader(out).ReadString('\n'); line != role+"\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return cmd
}

// untilKilled is the child.
func untilKilled(url string) {
	role := os.Getenv(roleEnv)
	if err := act(url, role, os.Getenv(nameEnv)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(role)
	select {}
}

func act(url, role, name string) error {
	ctx := context.Background()
	b, err := distlock.Open(ctx, url)
	if err != nil {
		return err
	}
	stands := make(chan struct{}, 1)
	c, err := distlock.New(b, &distlock.Options{TTL: shortLife, Observer: &distlock.Observer{Waiting: func(distlock.Event) { stands <- struct{}{} }}})
	if err != nil {
		return err
	}
	if role == "stands" {
		go fair.lock(c, name).lock(ctx)
		<-stands
		return nil
	}
	for _, m := range mortals {
		if _, err := m.held.lock(c, m.name(name)).lock(ctx); err != nil {
			return err
		}
	}
	return nil
}
