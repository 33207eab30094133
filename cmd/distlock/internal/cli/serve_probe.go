package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// healthTime is how long a probe waits for an answer.
const healthTime = 5 * time.Second

// health asks the server on this host that was started with the same flags whether it is ready. A socket is asked rather
// than an address, which may want a client certificate: one that refuses the probe for that lives.
func health(listen []string, encrypted bool) error {
	if len(listen) == 0 {
		return usage("serve: --listen is empty; want an address, or no such flag")
	}
	address := listen[0]
	if i := slices.IndexFunc(listen, func(l string) bool { return strings.HasPrefix(l, "unix:") }); i >= 0 {
		address = listen[i]
	}
	scheme := "http"
	path, isSocket := strings.CutPrefix(address, "unix:")
	if !isSocket && encrypted {
		scheme = "https"
	}
	var wanted atomic.Bool // a client certificate. The alert may be lost when the connection ends
	t := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, // this host is asked, and its certificate may have another name
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				wanted.Store(true)
				return &tls.Certificate{}, nil
			},
		},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if isSocket {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", reachable(address))
		},
	}
	resp, err := (&http.Client{Transport: t, Timeout: healthTime}).Get(scheme + "://localhost/readyz")
	switch {
	case err != nil && wanted.Load() && !os.IsTimeout(err):
		return nil
	case err != nil:
		return exit(exitUnreachable, "serve --health: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return exit(exitUnreachable, "serve --health: %s answers %s", address, resp.Status)
	}
	return nil
}

// reachable returns an address at which this host reaches a server that listens on an address. It is no name, since an image without
// /etc/hosts may know none.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	switch ip := net.ParseIP(host); {
	case err != nil || host != "" && !ip.IsUnspecified():
		return address
	case ip != nil && ip.To4() == nil:
		return net.JoinHostPort(net.IPv6loopback.String(), port)
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// notify tells systemd the state of the service, if that has started it with Type=notify.
func notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	c, err := net.Dial("unixgram", path) // package net knows names that begin with @
	if err != nil {
		return err
	}
	_, err = c.Write([]byte(state))
	return cmp.Or(err, c.Close())
}
