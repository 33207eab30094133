package etcdlock

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/rights"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The commands of the page make a user who can do all. Without either half of readwrite, or with another prefix, it
// can't.
func TestRights(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
	example := strings.Join(rights.Example(t, "etcd.md", "etcdctl "), "\n")
	for i, c := range []struct {
		kind, prefix string
		ok           bool
	}{{"readwrite", "app/", true}, {"read", "app/", false}, {"write", "app/", false}, {"readwrite", "application/", false}} {
		name := "locks" + string(rune('0'+i))
		edited := strings.NewReplacer("locks", name, " readwrite app/ ", " "+c.kind+" "+c.prefix+" ").Replace(example)
		cmd := exec.Command("sh", "-ec", edited)
		etcdctl := testserver.Etcdctl(t, false)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(etcdctl)+":"+os.Getenv("PATH"), "ETCDCTL_API=3", "ETCDCTL_ENDPOINTS="+srv.Addr(), "ETCDCTL_USER=root:s3cret")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", edited, err, out)
		}
		u := url.URL{Scheme: "etcd", User: url.UserPassword(name, "password"), Host: srv.Addr(), Path: "/app", RawQuery: "timeout=2m"}
		if err := rights.Tour(t.Context(), u.String()); (err == nil) != c.ok {
			t.Errorf("%s on %s: %v", c.kind, c.prefix, err)
		}
	}
}
