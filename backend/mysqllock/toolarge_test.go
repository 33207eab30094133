package mysqllock

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// What is too large for a packet is so at any time: asking again does not help.
func TestPacketTooLarge(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--max-allowed-packet=1M"}})
	b := connect(t, srv.Database(t)+"?create=true")
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
		r := asks(mode.String(), mode)
		take(t, b, r)
		r.Meta = map[string]string{"note": strings.Repeat("x", 3<<19)}
		_, err := b.Acquire(t.Context(), r)
		wantIs(t, err, driver.ErrInvalid)
		release(t, b, r)
		r.Meta = map[string]string{"note": strings.Repeat("x", 1<<18)}
		take(t, b, r)
	}
}

// The server's own words for what does not fit are final, too.
func TestErrorsOfSize(t *testing.T) {
	t.Parallel()
	for _, n := range []uint16{errPacket, errFunctionPacket, errTooLong, errOutOfRange, errOverflow, errBadText} {
		if finalCallCause(fmt.Errorf("call: %w", &mysql.MySQLError{Number: n})) == "" {
			t.Errorf("error %d may pass", n)
		}
	}
	if finalCallCause(mysql.ErrPktTooLarge) == "" {
		t.Error("the pool's own limit may pass")
	}
	for _, err := range []error{nil, mysql.ErrInvalidConn, &mysql.MySQLError{Number: errDeadlock}} {
		if why := finalCallCause(err); why != "" {
			t.Errorf("%v: %s", err, why)
		}
	}
}

// A TTL that no clock can have is refused at once by each strategy.
func TestTTLTooLarge(t *testing.T) {
	t.Parallel()
	for _, s := range leaseStrategies {
		url, _ := freshDatabase(t, s)
		b := connect(t, url)
		r := request("x", long)
		take(t, b, r)
		for _, ttl := range []time.Duration{20 * driver.MaxTTL, math.MaxInt64, 0, -1} {
			huge := r
			huge.TTL = ttl
			_, err := b.Acquire(t.Context(), huge)
			wantIs(t, err, driver.ErrInvalid)
			wantIs(t, b.Renew(t.Context(), []driver.Hold{huge.Hold})[0], driver.ErrInvalid)
		}
	}
}
