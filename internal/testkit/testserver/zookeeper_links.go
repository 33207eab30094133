package testserver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime/pprof"
	"strconv"
	"sync"
	"testing"
)

// links are what servers reach each other through: each has a SOCKS proxy of its own
// for the connections that it makes, so that both ends of every connection are known.
type links struct {
	mu     sync.Mutex
	owner  map[string]*ZooKeeperServer // of a port
	cut    *ZooKeeperServer            // is cut off from the others
	conns  []*linked
	listen []net.Listener
}

// linked is a connection between two servers.
type linked struct {
	ends   [2]*ZooKeeperServer
	conns  [2]net.Conn
	silent bool
}

// proxy starts the one for a server's connections.
func (l *links) proxy(tb testing.TB, from *ZooKeeperServer) (port int, err error) {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	l.listen = append(l.listen, listener)
	// Whose goroutines are counted shall not count these.
	go func() {
		pprof.SetGoroutineLabels(context.Background())
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go l.pass(from, conn)
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// isolate lets nothing pass any more between a server and the others: connections stay
// open and are silent, new ones are refused.
func (l *links) isolate(s *ZooKeeperServer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = s
	for _, c := range l.conns {
		c.silent = c.silent || c.ends[0] == s || c.ends[1] == s
	}
}

// heal ends isolate, and the connections that have swallowed something.
func (l *links) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = nil
	for _, c := range l.conns {
		if c.silent {
			c.close()
		}
	}
}

func (l *links) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, listener := range l.listen {
		listener.Close()
	}
	for _, c := range l.conns {
		c.close()
	}
}

func (c *linked) close() {
	c.conns[0].Close()
	c.conns[1].Close()
}

var errCutOff = errors.New("the servers are cut off from each other")

// pass connects a server to where it asks to be, until either side ends.
func (l *links) pass(from *ZooKeeperServer, conn net.Conn) {
	defer conn.Close()
	addr, err := socksTarget(conn)
	if err != nil {
		return
	}
	c, err := l.connect(from, conn, addr)
	if err != nil {
		io.WriteString(conn, socksRefused)
		return
	}
	defer c.close()
	if _, err := io.WriteString(conn, socksAccepted); err != nil {
		return
	}
	go l.copy(c, 1, 0)
	l.copy(c, 0, 1)
}

func (l *links) connect(from *ZooKeeperServer, conn net.Conn, addr string) (*linked, error) {
	target, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	to := l.owner[addr]
	if l.cut != nil && (from == l.cut) != (to == l.cut) {
		target.Close()
		return nil, errCutOff
	}
	c := &linked{ends: [2]*ZooKeeperServer{from, to}, conns: [2]net.Conn{conn, target}}
	l.conns = append(l.conns, c)
	return c, nil
}

func (l *links) copy(c *linked, from, to int) {
	defer c.close()
	buf := make([]byte, 32<<10)
	for {
		n, err := c.conns[from].Read(buf)
		if err != nil {
			return
		}
		l.mu.Lock()
		silent := c.silent
		l.mu.Unlock()
		if silent {
			continue
		}
		if _, err := c.conns[to].Write(buf[:n]); err != nil {
			return
		}
	}
}

// Values of SOCKS 5, RFC 1928.
const (
	socksHello    = "\x05\x00" // no password
	socksAccepted = "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
	socksRefused  = "\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"
)

var errSocks = errors.New("not SOCKS 5 to an IPv4 address")

// socksTarget returns the address that a client of the proxy wants to reach.
func socksTarget(conn net.Conn) (string, error) {
	var hello [2]byte
	if _, err := io.ReadFull(conn, hello[:]); err != nil {
		return "", err
	}
	if _, err := io.CopyN(io.Discard, conn, int64(hello[1])); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, socksHello); err != nil {
		return "", err
	}
	var request [10]byte // version, connect, reserved, kind of address, address, port
	if _, err := io.ReadFull(conn, request[:]); err != nil {
		return "", err
	}
	if request[0] != 5 || request[1] != 1 || request[3] != 1 {
		return "", errSocks
	}
	port := strconv.Itoa(int(binary.BigEndian.Uint16(request[8:])))
	return net.JoinHostPort(net.IP(request[4:8]).String(), port), nil
}
