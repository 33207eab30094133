package pglock

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// coordinatorName is the database's address, the same in whatever order somebody named the hosts.
// What another driver than pgx was told isn't known, so there the server says where it is.
func coordinatorName(f serverFacts, pg *pgx.Conn) string {
	hosts := []string{address(f.addr, uint16(f.port))}
	if pg != nil {
		config := pg.Config()
		hosts = []string{address(config.Host, config.Port)}
		for _, other := range config.Fallbacks {
			hosts = append(hosts, address(other.Host, other.Port))
		}
		slices.Sort(hosts)
	}
	return "postgres://" + strings.Join(slices.Compact(hosts), ",") + "/" + f.database
}

// address is a host and port; a Unix socket is on this host, as localhost is.
func address(host string, port uint16) string {
	if host == "" || strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") {
		host = "localhost"
	}
	if port == 0 {
		port = 5432
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
