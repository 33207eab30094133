package testcert

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// Server is a server that speaks TLS, and wants certificates of its clients that Own has signed.
type Server struct {
	// Show makes the server show a certificate to clients that connect from now on. It returns the URL for
	// them, without parameters for certificates. good means that a client accepts it.
	Show func(t *testing.T, shown Pair, good bool) (url string)

	// CA, Cert, Key and ServerName name the parameters of the URL. Empty: ca, cert, key and servername. A
	// ServerName of "-" means that there is none.
	CA, Cert, Key, ServerName string

	// Unknown has the words of the error for a client certificate that the server does not know, beside
	// "certificate".
	Unknown []string
}

// Try opens a backend with good and bad certificates, and takes a lock over each connection that comes about. A
// refusal must say what is wrong, and end long before the URL's timeout, which is two minutes.
func Try(t *testing.T, s Server) {
	t.Helper()
	own, err := Own()
	other, err2 := NewAuthority()
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	sign := func(a *Authority, change func(*x509.Certificate)) Pair {
		p, err := a.Sign(change)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	good := sign(own, nil)
	expired := sign(own, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	foreign := sign(own, func(c *x509.Certificate) {
		c.IPAddresses, c.DNSNames = []net.IP{net.IPv4(192, 0, 2, 1)}, []string{"locks.example"}
	})
	client, stranger := sign(own, nil).Files(t), sign(other, nil).Files(t)
	ca := own.Pair.Files(t).Cert
	for _, c := range []struct {
		name   string
		shown  Pair
		client Files
		server string   // name that is expected
		words  []string // of the refusal; none: it works
	}{
		{name: "good certificates", shown: good, client: client},
		{name: "no client certificate", shown: good, words: []string{"certificate", "cert"}},
		{name: "a client certificate of another authority", shown: good, client: stranger, words: append(s.Unknown, "certificate")},
		{name: "an expired certificate", shown: expired, client: client, words: []string{"expired"}},
		{name: "a certificate for another host", shown: foreign, client: client, words: []string{"192.0.2.1", "not 127.0.0.1"}},
		{name: "the name that was asked for", shown: foreign, client: client, server: "locks.example"},
		{name: "another name than was asked for", shown: foreign, client: client, server: "other.example", words: []string{"locks.example", "not other.example"}},
		{name: "a certificate of another authority", shown: sign(other, nil), client: client, words: []string{"unknown authority"}},
	} {
		if c.server != "" && s.ServerName == "-" {
			continue
		}
		u, err := url.Parse(s.Show(t, c.shown, bytes.Equal(c.shown.Cert, good.Cert)))
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		q.Set(cmp.Or(s.CA, "ca"), ca)
		for param, value := range map[string]string{
			cmp.Or(s.Cert, "cert"): c.client.Cert, cmp.Or(s.Key, "key"): c.client.Key, cmp.Or(s.ServerName, "servername"): c.server,
		} {
			if value != "" {
				q.Set(param, value)
			}
		}
		u.RawQuery = q.Encode()
		err = use(t, u.String())
		if len(c.words) == 0 {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		checkRefusal(t, c.name, err, c.words)
	}
}

func checkRefusal(t *testing.T, what string, err error, words []string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: accepted", what)
		return
	}
	t.Logf("%s: %v", what, err)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: it was tried until the time was up: %v", what, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v; want %q in it", what, err, w)
		}
	}
}

// use opens a backend and locks something.
func use(t *testing.T, url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	b, err := driver.Open(ctx, url)
	if err != nil {
		return err
	}
	defer b.Close()
	r := driver.Request{
		Hold:   driver.Hold{Name: "job", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 2 * time.Minute},
		Fences: 1,
	}
	if _, err := b.Acquire(ctx, r); err != nil {
		return err
	}
	return b.Release(ctx, r.Hold)
}

// Entrance is a server with TLS before a server without: what it reads it sends to the address to, and back. It
// wants certificates of its clients that Own has signed. It returns its address.
func Entrance(t *testing.T, to string, shown Pair) (addr string) {
	t.Helper()
	own, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{shown.TLS(t)}, ClientCAs: own.Roots(), ClientAuth: tls.RequireAndVerifyClientCert,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go forward(c, to)
		}
	}()
	return l.Addr().String()
}

func forward(c net.Conn, to string) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	go func() { io.Copy(s, c); s.Close() }()
	io.Copy(c, s)
}
