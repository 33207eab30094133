package mysqllock

import (
	"net"
	"os"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// galeraProvider comes with MariaDB's package.
const galeraProvider = "/usr/lib/galera/libgalera_smm.so"

// galeraNode starts a node that listens to other nodes on a port.
func galeraNode(t *testing.T, port, cluster string, more ...string) *testserver.MariaDBServer {
	t.Helper()
	if _, err := os.Stat(galeraProvider); err != nil {
		testserver.SharedMariaDB(t) // which installs the package
	}
	args := []string{
		"--wsrep-on=ON", "--wsrep-provider=" + galeraProvider, "--wsrep-cluster-address=gcomm://" + cluster,
		"--wsrep-sst-method=skip", "--wsrep-node-address=127.0.0.1", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
		"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:" + port + ";ist.recv_addr=127.0.0.1:0",
	}
	return testserver.MariaDB(t, testserver.MariaDBOptions{Args: append(args, more...)})
}

// A cluster of one node, which is enough to be one.
func TestLongGalera(t *testing.T) {
	t.Parallel()
	srv := galeraNode(t, "0", "", "--wsrep-new-cluster")
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

// A cluster whose nodes all take writes has several clocks: it is refused, unless all write
// to one node.
func TestLongGaleraOfTwo(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	first := galeraNode(t, port, "", "--wsrep-new-cluster")
	url := first.Database(t) + "?create=true&strategy="
	for _, s := range []Strategy{Row, Version} {
		connect(t, url+string(s))
	}
	galeraNode(t, "0", "127.0.0.1:"+port)
	until(t, "the second node is there", func() bool {
		return first.Ask(t, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'wsrep_cluster_size'") == "2"
	})
	for _, s := range []Strategy{Row, Version} {
		_, err := Open(t.Context(), url+string(s))
		wantIs(t, err, driver.ErrUnsupported)
		worded(t, err, "2 nodes", "onewriter=true")
	}
	for _, s := range []Strategy{Row, Version} {
		b := connect(t, url+string(s)+"&onewriter=true")
		take(t, b, request(string(s), long))
	}
}
