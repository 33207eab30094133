package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// An attempt that is held back, and arrives after the release of its Owner, takes nothing.
func TestAttemptAfterItsRelease(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	for _, c := range []struct {
		what  string
		first func() // before the release
		says  int
	}{
		{"the attempt was not made before", func() {}, 410},
		{"an earlier attempt of the Owner was granted", func() { r.wants(200, "", "POST", "/v1/acquire", hold("late", ownerB)) }, 204},
	} {
		owner := map[int]string{410: ownerA, 204: ownerB}[c.says]
		conn := must.Get(net.Dial("tcp", r.http.Listener.Addr().String()))(t)
		defer conn.Close()
		body := hold("late", owner)
		fmt.Fprintf(conn, "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:len(body)-1])
		c.first()
		r.wants(c.says, "", "POST", "/v1/release", hold("late", owner))
		io.WriteString(conn, body[len(body)-1:])
		resp := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
		text, err := io.ReadAll(resp.Body)
		if want := `"spent":true`; err != nil || resp.StatusCode != 503 || !strings.Contains(string(text), want) || !strings.Contains(string(text), `"distlock":"unsent"`) {
			t.Errorf("%s: %d %s, %v; want 503 and %s", c.what, resp.StatusCode, text, err, want)
		}
		r.wants(200, `"holders":[]`, "GET", "/v1/locks/late", "")
	}
}

func TestReleasedOwnersAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var o releasedOwners
		o.add("first")
		o.add("first")
		for i := range 2*maxReleased - 2 {
			o.add(strconv.Itoa(i))
		}
		if o.check("first") == nil || o.check("0") == nil || o.check("never released") != nil {
			t.Error("the last ones are not known, or another is")
		}
		o.add("one more")
		if o.check("first") != nil || o.check("one more") == nil || len(o.last)+len(o.before) > 2*maxReleased {
			t.Error("not the first ones were forgotten")
		}
		time.Sleep(releasedLife)
		expect.Be(t, o.check("one more"), errReleased, "after the time for which it must be known")
		time.Sleep(2 * releasedLife)
		expect.OK(t, o.check("one more"), "much later")
		o.add("the last of the day")
		time.Sleep(24 * time.Hour)
		expect.OK(t, o.check("the last of the day"), "on the next day")
	})
}
