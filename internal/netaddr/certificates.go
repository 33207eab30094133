package netaddr

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/distlock/distlock/driver"
)

// Certificates is how connections use TLS. Its files are read again for each connection, since certificates are
// renewed more often than programs start. It is safe for concurrent use. A nil Certificates stands for no TLS.
type Certificates struct {
	files *Files[made]
	own   string // the file with our own certificate; empty: there is none
}

// made is what was made of the files.
type made struct {
	config *tls.Config
	ends   time.Time // the end of our own certificate; zero: there is none
}

// ReadCertificates reads how servers are to be trusted: by what the system trusts, or by the
// authorities in the file ca; and which certificate of the user's own, in the files cert
// and key, is shown to them. servername is the name that their certificates must have, in place of the host.
// The result is never nil.
func ReadCertificates(p *driver.Params) (*Certificates, error) {
	server, ca, cert, key := p.String("servername", ""), p.String("ca", ""), p.String("cert", ""), p.String("key", "")
	files, err := OpenFiles([]File{{"parameter ca", ca, nil}, {"parameter cert", cert, nil}, {"parameter key", key, nil}}, func(pem [][]byte) (m made, err error) {
		m.config = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: server}
		var errs [2]error
		if ca != "" {
			m.config.RootCAs, errs[0] = Authorities("parameter ca="+ca, pem[0])
		}
		if cert != "" || key != "" {
			var own tls.Certificate
			own, errs[1] = KeyPair(fmt.Sprintf("parameters cert=%s and key=%s", cert, key), pem[1], pem[2])
			m.config.Certificates = []tls.Certificate{own}
			if own.Leaf != nil {
				m.ends = own.Leaf.NotAfter
			}
		}
		return m, errors.Join(errs[:]...)
	})
	if err != nil {
		return StaticCertificates(&tls.Config{}), fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return &Certificates{files, cert}, nil
}

// StaticCertificates returns Certificates that always use a user's config; nil for nil.
func StaticCertificates(config *tls.Config) *Certificates {
	if config == nil {
		return nil
	}
	files, _ := OpenFiles(nil, func([][]byte) (made, error) { return made{config: config}, nil })
	return &Certificates{files: files}
}

// Config returns the config of the next connection, which the caller may change; nil without TLS. Files that can't be
// used, as while they are being replaced, leave it as it was.
func (c *Certificates) Config() *tls.Config {
	if c == nil {
		return nil
	}
	m, _ := c.files.Now()
	return m.config.Clone()
}

// Hint returns what may help after a connection failed, to be put behind the error. It is empty if the error says it.
func (c *Certificates) Hint(err error) string {
	if c == nil {
		return ""
	}
	switch m, problem := c.files.Last(); {
	case problem != nil:
		return fmt.Sprintf("; the files of its certificates can't be used: %v", problem)
	case !m.ends.IsZero() && time.Now().After(m.ends):
		return fmt.Sprintf("; the certificate in %s ended at %s", c.own, m.ends.Format(time.RFC3339))
	}
	return hint(err)
}

// Authorities returns the certificates in a file's text, which what names in errors.
func Authorities(what string, pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: want a file of certificates in PEM form", what)
	}
	return pool, nil
}

// KeyPair returns a certificate and its key from the texts of two files, which what names in errors. Leaf is set.
func KeyPair(what string, cert, key []byte) (tls.Certificate, error) {
	own, err := tls.X509KeyPair(cert, key)
	if err == nil {
		own.Leaf, err = x509.ParseCertificate(own.Certificate[0])
	}
	if err != nil {
		return own, fmt.Errorf("%s: want files with a certificate and its key, in PEM form: %w", what, err)
	}
	return own, nil
}

// hint is Hint for files that are in order.
func hint(err error) string {
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
