package zklock

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/rights"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The commands of the page, in ZooKeeper's shell, make a chroot in which its user can do all. Without either right it
// can't, nor can another user.
func TestRights(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	var script []string
	for _, start := range []string{"addauth ", "create ", "setAcl "} {
		script = append(script, rights.Example(t, "zookeeper.md", start)...)
	}
	all := strings.Join(script, "\n") + "\n"
	if !strings.Contains(all, ":cr\n") || strings.Count(all, "/locks") != 2 {
		t.Fatalf("the example is %q", all)
	}
	chroots := map[string]string{"cr": "/rights", "c": "/rights-c", "r": "/rights-r"}
	var input string
	for perms, chroot := range chroots {
		input += strings.NewReplacer("/locks", chroot, ":cr\n", ":"+perms+"\n").Replace(all)
	}
	shell := testserver.ZooKeeperShell(t, srv)
	shell.Stdin = strings.NewReader(input + "quit\n")
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for perms, chroot := range chroots {
		err := rights.Tour(t.Context(), "zk://app:password@"+srv.Addr()+chroot+"?acl=creator&timeout=2m")
		if (err == nil) != (perms == "cr") {
			t.Errorf("with the rights %s: %v\n%s", perms, err, out)
		}
	}
	if err := rights.Tour(t.Context(), "zk://other:password@"+srv.Addr()+"/rights?acl=creator&timeout=2m"); err == nil {
		t.Error("another user has the rights")
	}
}
