package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// tlsConfig reads the files of TLS. Clients without a certificate are refused where there is a client CA and no
// file of tokens.
func tlsConfig(certFile, keyFile, clientCA string, tokens bool) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, usage("serve: --tls-cert, --tls-key: %w", err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if clientCA == "" {
		return config, nil
	}
	text, err := os.ReadFile(clientCA)
	if err != nil {
		return nil, usage("serve: --client-ca: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, usage("serve: --client-ca: no certificate in %s", clientCA)
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	if tokens {
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, nil
}

// listenAll opens all addresses, or none.
func listenAll(addresses []string, config *tls.Config) (all []net.Listener, err error) {
	for _, address := range addresses {
		l, err := listen(address)
		if err != nil {
			for _, l := range all {
				l.Close()
			}
			return nil, exit(exitUnreachable, "serve: --listen %s: %w", address, err)
		}
		if config != nil && l.Addr().Network() == "tcp" {
			l = tls.NewListener(l, config)
		}
		all = append(all, l)
	}
	return all, nil
}

func listen(address string) (net.Listener, error) {
	path, isSocket := strings.CutPrefix(address, "unix:")
	if !isSocket {
		return net.Listen("tcp", address)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	return listenPrivately(path)
}

// removeStale removes a socket that a server which was killed has left.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("%s is there and is not a socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("another server listens on %s", path)
	}
	return os.Remove(path)
}
