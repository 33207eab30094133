// Package testcert makes certificates for tests of TLS, good ones and bad ones, and tries them on a
// backend (see Try).
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Authority is a certificate that signs others, and itself. It is good for a server at 127.0.0.1 or
// localhost, and for a client.
type Authority struct {
	Pair
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key, as PEM.
type Pair struct{ Cert, Key []byte }

// Files are the paths of a certificate and its key.
type Files struct{ Cert, Key string }

// NewAuthority makes an authority.
func NewAuthority() (*Authority, error) {
	a := &Authority{}
	cert := draft()
	cert.Subject.Organization[0] += ", authority " + cert.SerialNumber.String() // OpenSSL takes equal names for one certificate
	cert.IsCA, cert.BasicConstraintsValid = true, true
	cert.KeyUsage |= x509.KeyUsageCertSign
	var err error
	a.Pair, err = a.sign(cert)
	return a, err
}

// Own is the authority of the servers that package testserver starts.
var Own = sync.OnceValues(NewAuthority)

// Sign makes a certificate for a server at 127.0.0.1 or localhost, or a client, as change has changed it.
func (a *Authority) Sign(change func(*x509.Certificate)) (Pair, error) {
	cert := draft()
	if change != nil {
		change(cert)
	}
	return a.sign(cert)
}

// Roots returns a pool with the authority alone.
func (a *Authority) Roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return roots
}

// draft returns what all certificates have in common. Java wants a name; etcd would take a common name
// for a user.
func draft() *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{Organization: []string{"distlock tests"}},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// sign makes a certificate of a draft. The first that an authority signs is its own.
func (a *Authority) sign(cert *x509.Certificate) (p Pair, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return p, err
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = cert, key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	if err != nil {
		return p, err
	}
	if a.cert == nil {
		a.key = key
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			return p, err
		}
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	p.Cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	p.Key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	return p, err
}

// Write puts the certificate and its key into the files cert.pem and key.pem of a folder.
func (p Pair) Write(dir string) (Files, error) {
	f := Files{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	return f, errors.Join(os.WriteFile(f.Cert, p.Cert, 0o600), os.WriteFile(f.Key, p.Key, 0o600))
}

// Files puts the certificate and its key into a folder of the test's.
func (p Pair) Files(tb testing.TB) Files {
	tb.Helper()
	f, err := p.Write(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// TLS returns the certificate as package tls has it.
func (p Pair) TLS(tb testing.TB) tls.Certificate {
	tb.Helper()
	c, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}
