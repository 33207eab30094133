package interop

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A child is a Go process that is going to be killed: the test's program, in a role.
const (
	childEnv = "DISTLOCK_INTEROP_CHILD" // its URL
	roleEnv  = "DISTLOCK_INTEROP_ROLE"
	nameEnv  = "DISTLOCK_INTEROP_NAME"
)

// StartChild starts a Go process in a role and returns when it plays it: when RunChild's
// act has returned.
func StartChild(t *testing.T, url, role, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+url, roleEnv+"="+role, nameEnv+"="+name)
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

// RunChild is what a child does, who does not return; everybody else does at once. It is
// for TestMain.
func RunChild(act func(url, role, name string) error) {
	url, role := os.Getenv(childEnv), os.Getenv(roleEnv)
	if url == "" {
		return
	}
	if err := act(url, role, os.Getenv(nameEnv)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(role)
	select {}
}
