package netaddr

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/distlock/distlock/driver"
)

// Certificates is how connections use TLS. Its files are read again for each connection, since certificates are
// renewed more often than programs start. It is safe for concurrent use. A nil Certificates stands for no TLS.
type Certificates struct {
	files files
	base  *tls.Config // without what the files say

	mu      sync.Mutex
	read    *contents   // nil: none yet
	config  *tls.Config // of the contents that were read last, and could be used
	ends    time.Time   // the end of our own certificate; zero: there is none
	problem error       // why the files can't be used as they are now
}

// files are the paths of files in PEM form; empty ones are not used.
type files struct{ ca, cert, key string }

// contents are the bytes of files.
type contents struct{ ca, cert, key []byte }

// ReadCertificates reads how servers are to be trusted: by what the system trusts, or by the
// authorities in the file ca; and which certificate of the user's own, in the files cert
// and key, is shown to them. servername is the name that their certificates must have, in place of the host.
// The result is never nil.
func ReadCertificates(p *driver.Params) (*Certificates, error) {
	c := &Certificates{
		base:  &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.String("servername", "")},
		files: files{p.String("ca", ""), p.String("cert", ""), p.String("key", "")},
	}
	c.config = c.base
	return c, c.update()
}

// StaticCertificates returns Certificates that always use a user's config; nil for nil.
func StaticCertificates(config *tls.Config) *Certificates {
	if config == nil {
		return nil
	}
	return &Certificates{base: config, config: config}
}

// Config returns the config of the next connection, which the caller may change; nil without TLS. Files that can't be
// used, as while they are being replaced, leave it as it was.
func (c *Certificates) Config() *tls.Config {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problem = c.update()
	return c.config.Clone()
}

// update reads the files. mu is held, or nobody else has c.
func (c *Certificates) update() error {
	now, err := c.files.read()
	if err != nil || c.read != nil && now.equal(*c.read) {
		return err
	}
	config := c.base.Clone()
	ends, err := c.files.use(now, config)
	if err != nil {
		return err
	}
	c.read, c.config, c.ends = &now, config, ends
	return nil
}

// Hint returns what may help after a connection failed, to be put behind the error. It is empty if the error says it.
func (c *Certificates) Hint(err error) string {
	if c == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.problem != nil:
		return fmt.Sprintf("; its files could not be read again: %v", c.problem)
	case !c.ends.IsZero() && time.Now().After(c.ends):
		return fmt.Sprintf("; the certificate in %s ended at %s", c.files.cert, c.ends.Format(time.RFC3339))
	}
	return Hint(err)
}

func (f files) read() (now contents, err error) {
	var errs []error
	load := func(path, want string) []byte {
		if path == "" {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: parameter %s: %w", driver.ErrInvalid, want, err))
		}
		return b
	}
	now = contents{
		load(f.ca, "ca: want a file of certificates in PEM form"),
		load(f.cert, "cert: want a file with a certificate in PEM form"),
		load(f.key, "key: want a file with the certificate's key in PEM form"),
	}
	if (f.cert == "") != (f.key == "") {
		errs = append(errs, fmt.Errorf("%w: want both of the parameters cert and key, or none", driver.ErrInvalid))
	}
	return now, errors.Join(errs...)
}

// use puts what the files say into config, and returns when our own certificate ends.
func (f files) use(now contents, config *tls.Config) (ends time.Time, err error) {
	var errs []error
	if f.ca != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(now.ca) {
			errs = append(errs, fmt.Errorf("%w: parameter ca=%s: want a file of certificates in PEM form", driver.ErrInvalid, f.ca))
		}
	}
	if f.cert != "" {
		own, err := tls.X509KeyPair(now.cert, now.key)
		if err == nil {
			own.Leaf, err = x509.ParseCertificate(own.Certificate[0])
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: parameters cert=%s and key=%s: want files with a certificate and its key, in PEM form: %w", driver.ErrInvalid, f.cert, f.key, err))
		} else {
			config.Certificates, ends = []tls.Certificate{own}, own.Leaf.NotAfter
		}
	}
	return ends, errors.Join(errs...)
}

func (c contents) equal(d contents) bool {
	return bytes.Equal(c.ca, d.ca) && bytes.Equal(c.cert, d.cert) && bytes.Equal(c.key, d.key)
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
