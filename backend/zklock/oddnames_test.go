package zklock

import (
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/oddnames"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

func TestOddNames(t *testing.T) {
	t.Parallel()
	chroot := "/odd-" + driver.NewOwner()
	makeNode(t, admin(t), chroot, "", zk.Persistent)
	oddnames.Try(t, open(t, testserver.SharedZooKeeper(t).URL()+chroot), nil)
}
