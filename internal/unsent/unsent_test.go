package unsent_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/unsent"
)

func TestMark(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	conn := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	defer conn.Close()
	l.Close()
	_, refused := net.Dial("tcp", l.Addr().String())
	_, noHost := net.Dial("tcp", "host.invalid:1")
	conn.SetDeadline(time.Unix(1, 0))
	_, unread := conn.Read(make([]byte, 1))
	for what, c := range map[string]struct {
		err  error
		want bool
	}{
		"refused":       {refused, true},
		"refused, deep": {fmt.Errorf("open: %w", errors.Join(errors.New("x"), refused)), true},
		"no such host":  {noHost, true},
		"untrusted":     {fmt.Errorf("open: %w", &tls.CertificateVerificationError{Err: errors.New("x")}), true},
		"no answer":     {unread, false},
		"given up":      {context.DeadlineExceeded, false},
		"none":          {nil, false},
	} {
		got := unsent.Mark(c.err)
		if errors.Is(got, driver.ErrUnsent) != c.want || !errors.Is(got, c.err) {
			t.Errorf("%s: %v (%v) matches ErrUnsent: %v", what, got, c.err, !c.want)
		}
		if c.err != nil && got.Error() != c.err.Error() {
			t.Errorf("%s: %q became %q", what, c.err, got)
		}
	}
}
