// Package netaddr reads those parts of a URL that all coordinators on a network have in
// common: addresses, how TLS reaches them, and how a user logs in.
package netaddr

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

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

// NoTLS refuses the parameters of TLS in a URL without it. secure is the scheme that has it.
func NoTLS(u *url.URL, secure string) error {
	for _, param := range []string{"ca", "cert", "key", "servername"} {
		if u.Query().Has(param) {
			return fmt.Errorf("%w: parameter %s is for TLS: want a URL that begins with %s", driver.ErrInvalid, param, secure)
		}
	}
	return nil
}
