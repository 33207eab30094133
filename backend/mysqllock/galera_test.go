package mysqllock

import (
	"os"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testserver"
)

// galeraProvider comes with MariaDB's package.
const galeraProvider = "/usr/lib/galera/libgalera_smm.so"

// A cluster of one node, which is enough to be one.
func TestGalera(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(galeraProvider); err != nil {
		testserver.SharedMariaDB(t) // which installs the package
	}
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{
		"--wsrep-on=ON", "--wsrep-provider=" + galeraProvider, "--wsrep-cluster-address=gcomm://", "--wsrep-new-cluster",
		"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:0",
	}})
	url := srv.Database(t) + "?create=true&strategy="
	for _, s := range []Strategy{UniqueIndex, ForUpdate, Session} {
		_, err := Open(t.Context(), url+string(s))
		wantIs(t, err, driver.ErrUnsupported)
		worded(t, err, "Galera", "strategy row")
	}
	for _, s := range []Strategy{Row, Version} {
		b := connect(t, url+string(s))
		take(t, b, request("x", long))
		refused(t, b, request("x", long))
	}
}
