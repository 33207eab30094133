// Package netaddr reads those parts of a URL that all coordinators on a network have in
// common: addresses, and how TLS reaches them.
package netaddr

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/distlock/distlock/driver"
)

// Of are the addresses in a URL, as driver.Hosts has them, with ports that can be.
func Of(u *url.URL, defaultPort string) ([]string, error) {
	if u.Opaque != "" {
		return nil, fmt.Errorf("%w: want two slashes before the host, as in %s://localhost:%s", driver.ErrInvalid, u.Scheme, defaultPort)
	}
	addrs := driver.Hosts(u, defaultPort)
	for _, addr := range addrs {
		_, port, _ := net.SplitHostPort(addr)
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("%w: the port of %s: want a number from 1 to 65535", driver.ErrInvalid, addr)
		}
	}
	return addrs, nil
}

// Listed are addresses in an order of their own, for a name that is the same whatever
// order they were written in.
func Listed(addrs []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(addrs))), ",")
}

// TLS reads how servers are to be trusted: by what the system trusts, or by the
// authorities in the file ca; and which certificate of the user's own, in the files cert
// and key, is shown to them. servername is the name that their certificates must have, in place of the host.
func TLS(p *driver.Params) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.String("servername", "")}
	ca, cert, key := p.String("ca", ""), p.String("cert", ""), p.String("key", "")
	var errs []error
	if ca != "" {
		config.RootCAs = x509.NewCertPool()
		pem, err := os.ReadFile(ca)
		if err != nil || !config.RootCAs.AppendCertsFromPEM(pem) {
			errs = append(errs, fmt.Errorf("%w: parameter ca=%s: want a file of certificates in PEM form", driver.ErrInvalid, ca))
		}
	}
	if cert != "" || key != "" {
		own, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: parameters cert=%s and key=%s: want files with a certificate and its key, in PEM form: %w", driver.ErrInvalid, cert, key, err))
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, errors.Join(errs...)
}

// NoTLS refuses the parameters of TLS in a URL without it. secure is the scheme that has it.
func NoTLS(u *url.URL, secure string) error {
	for _, param := range []string{"ca", "cert", "key", "servername"} {
		if u.Query().Has(param) {
			return fmt.Errorf("%w: parameter %s is for TLS: want a URL that begins with %s", driver.ErrInvalid, param, secure)
		}
	}
	return nil
}

// Hint returns what may help after a connection with TLS failed, to be put behind the error. It is empty if the
// error says it.
func Hint(err error) string {
	var unverified *tls.CertificateVerificationError
	var remote *net.OpError
	switch record := (tls.RecordHeaderError{}); {
	case errors.As(err, &unverified):
		return ""
	case errors.As(err, &record):
		return "; the server does not speak TLS there"
	case errors.As(err, &remote) && remote.Op == "remote error":
		return "; does the server want a client certificate, or another one: parameters cert and key?"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "; does the server speak TLS there, or want a client certificate, or another one: parameters cert and key?"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "; does the server speak TLS there?"
	}
	return ""
}
