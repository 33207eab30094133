package testserver

import (
	"net"
	"testing"
)

// DeadAddr returns an address on which connections are refused until the test ends: its port
// is that of an open connection, so that no server can take it meanwhile.
func DeadAddr(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().String()
}
