// Package lockserver has the server of locks that tests run as a child process.
package lockserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/server"
)

// Open returns a server of the locks of the backend at url.
func Open(url string) (*server.Server, error) {
	b, err := driver.Open(context.Background(), url)
	if err != nil {
		return nil, err
	}
	return server.New(b, server.Options{})
}

// Serve serves the locks of the backend at url until the process is killed. It prints the address once it listens. For a minute it
// waits for an address that is in use: the port of a server that was killed may be a client's for a moment.
func Serve(url, addr string) error {
	s, err := Open(url)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	for end := time.Now().Add(time.Minute); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		l, err = net.Listen("tcp", addr)
	}
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return http.Serve(l, s)
}
