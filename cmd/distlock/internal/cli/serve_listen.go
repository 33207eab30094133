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

// tlsConfig reads the files of TLS.
func (o *serveOptions) tlsConfig() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return nil, usage("serve: --tls-cert, --tls-key: %w", err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if o.clientCA == "" {
		return config, nil
	}
	text, err := os.ReadFile(o.clientCA)
	if err != nil {
		return nil, usage("serve: --client-ca: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, usage("serve: --client-ca: no certificate in %s", o.clientCA)
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	if o.tokens != "" {
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, nil
}

// listeners opens all addresses, or none.
func (o *serveOptions) listeners(config *tls.Config) (all []net.Listener, err error) {
	for _, address := range o.listen {
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
