package testserver

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
	"time"
)

// certificate is one for 127.0.0.1 that signs itself, with its key.
type certificate struct {
	cert, key []byte // PEM
	roots     *x509.CertPool
	err       error
}

var ownCertificate = sync.OnceValue(func() (c certificate) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certificate{err: err}
	}
	// Java wants a name; for etcd a common one would be that of a user.
	draft := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"distlock tests"}}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, draft, draft, &key.PublicKey, key)
	if err != nil {
		return certificate{err: err}
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return certificate{err: err}
	}
	c.cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	c.key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	c.roots = x509.NewCertPool()
	c.roots.AppendCertsFromPEM(c.cert)
	return c
})

// write puts the certificate and its key into a folder.
func (c *certificate) write(dir string) (cert, key string, err error) {
	if c.err != nil {
		return "", "", c.err
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	return cert, key, errors.Join(os.WriteFile(cert, c.cert, 0o600), os.WriteFile(key, c.key, 0o600))
}

// trust is how clients reach a server that shows the certificate.
func (c *certificate) trust() *tls.Config {
	return &tls.Config{RootCAs: c.roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
}
