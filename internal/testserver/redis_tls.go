package testserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
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
	draft := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
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

// useTLS is the options that move the server's port to TLS.
func (s *RedisServer) useTLS() ([]string, error) {
	c := ownCertificate()
	if c.err != nil {
		return nil, c.err
	}
	cert, key := filepath.Join(s.dir, "cert.pem"), filepath.Join(s.dir, "key.pem")
	if err := os.WriteFile(cert, c.cert, 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(key, c.key, 0o600); err != nil {
		return nil, err
	}
	s.tls = &tls.Config{RootCAs: c.roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
	return []string{
		"--tls-port", strconv.Itoa(s.port), "--port", "0",
		"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert,
		"--tls-auth-clients", "no", "--tls-replication", "yes", "--tls-cluster", "yes",
	}, nil
}
