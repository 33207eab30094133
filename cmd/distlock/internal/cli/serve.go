package cli

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/server"
)

const serveHelp = `Serve gives programs in every language the locks of one backend, over HTTP and JSON, and
shows them on a web page. Any number of servers may stand before one backend: they have no
state of their own. The backend's locks must outlive its connections, so ZooKeeper can't be
served, nor MySQL and PostgreSQL with another strategy than row.

Without more, only this host can reach the server, and all its users may do everything. Any
other address needs TLS (--tls-cert, --tls-key), and --tokens or --client-ca to know who
calls. Each line of the file of tokens has a name, the hash of a token, rights, and the prefix
of the lock names for which they hold:

  # name   token            rights         prefix
  ci       sha256:3c9f…     lock,see       ci/
  oncall   sha256:77ab…     see,ask,break  *
  billing  cert:billing     lock           billing/

"distlock token" makes a token and its line. This file and those of TLS are read again when they
have changed; SIGHUP does no harm.

With SIGTERM or SIGINT the server drains: /readyz answers 503, new acquires and all that wait
are sent to the next server, and holds can be renewed and released until --drain is over.
--health is for the probes of containers. systemd is notified (Type=notify).

Exit codes: 0 after SIGTERM or SIGINT; 64 wrong usage, or a backend that can't be served; 69
the backend is unreachable, or the address is in use.`

// serveOptions are the flags of serve.
type serveOptions struct {
	listen              []string
	tokens              string
	cert, key, clientCA string
	hosts               []string
	insecure            bool
	maxHolds, maxOpen   int
	drain               time.Duration
	log                 string
	accessLog           bool
	health              bool
}

// defaultListen is where serve listens without --listen.
const defaultListen = "127.0.0.1:7077"

func (a *app) serveCommand() *cobra.Command {
	o := &serveOptions{listen: []string{defaultListen}, maxHolds: 10_000, maxOpen: 1000, drain: 5 * time.Second, log: "text"}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the locks of a backend over HTTP",
		Long:  serveHelp,
		Example: `  distlock serve --url redis://localhost:6379
  distlock serve --listen unix:/run/distlock/distlock.sock
  distlock serve --listen 0.0.0.0:7077 --tls-cert tls.crt --tls-key tls.key --tokens tokens`,
		Args: exactly(0, "flags only"),
		RunE: func(*cobra.Command, []string) error {
			if o.health {
				return health(o.listen, o.cert != "")
			}
			return a.serve(o)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.listen, "listen", o.listen, "address, or unix:PATH for a socket of this user; may be given several times")
	f.Var(nonEmpty(&o.tokens), "tokens", "file of tokens, certificates and rights; without it all that reach the server may do everything")
	f.Var(nonEmpty(&o.cert), "tls-cert", "file with the server's certificate, and those between it and the root")
	f.Var(nonEmpty(&o.key), "tls-key", "file with the certificate's key")
	f.Var(nonEmpty(&o.clientCA), "client-ca", "file with the certificates of those that sign client certificates; without --tokens each client needs one")
	f.StringSliceVar(&o.hosts, "host", nil, "further host name of the server, or * for any (default beyond loopback: this host's, and with --tokens or --client-ca any)")
	f.BoolVar(&o.insecure, "insecure", false, "listen without TLS or tokens where others can reach the server: they may take and break all locks")
	f.Var(number(&o.maxHolds, 1, 10_000_000), "max-holds", "most holds and places in queues of one identity that this server has granted")
	f.Var(number(&o.maxOpen, 1, 1_000_000), "max-open", "most requests of one identity that wait")
	f.Var(duration(&o.drain, true), "drain", "time from SIGTERM to the end of service")
	f.BoolVar(&o.health, "health", false, "only ask the server of this host that has the same --listen and --tls-cert whether it is ready; exits with 0 or 69")
	f.Var(choice(&o.log, "text", "json", "off"), "log", "form of the log on the standard error: refused tokens and rights, lost locks, errors, slow calls, the drain")
	f.BoolVar(&o.accessLog, "access-log", false, "log each call, which takes about a tenth of the rate")
	return cmd
}

// logger returns the log, or nil.
func (o *serveOptions) logger(a *app) *slog.Logger {
	h := &slog.HandlerOptions{}
	if o.accessLog {
		h.Level = slog.LevelDebug
	}
	switch o.log {
	case "json":
		return slog.New(slog.NewJSONHandler(a.err, h))
	case "text":
		return slog.New(slog.NewTextHandler(a.err, h))
	}
	return nil
}

func (a *app) serve(o *serveOptions) error {
	ctx, stop := interruptible()
	defer stop()
	files, err := o.tls()
	if err != nil {
		return err
	}
	logger := o.logger(a)
	complain := func(what string, err error) {
		if logger == nil {
			a.warn(err)
			return
		}
		logger.Error(what, "error", err)
	}
	var access *server.Access
	if o.tokens != "" {
		if access, err = server.OpenAccess(o.tokens, func(err error) { complain("the file of tokens was not read again", err) }); err != nil {
			return exit(exitUsage, "serve: %w", err)
		}
	}
	b, err := a.openBackend(ctx)
	if err != nil {
		if caughtBy(ctx) != nil {
			return nil
		}
		return err
	}
	defer b.Close()
	s, err := server.New(b, server.Options{
		Access: access, Hosts: o.hostNames(), Log: logger, Version: version(), MaxHolds: o.maxHolds, MaxStreams: o.maxOpen,
		MaxConnections: mostConnections(openFiles()),
	})
	if err != nil {
		return exit(exitUsage, "serve: %w", err)
	}
	var config *tls.Config
	if files != nil {
		notRead := func(err error) { complain("the files of TLS were not read again", err) }
		config = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.Current(notRead), nil }}
	}
	listeners, err := listenAll(o.listen, config)
	if err != nil {
		return err
	}
	defer uponHangup(func() {
		if config != nil {
			_, _ = config.GetConfigForClient(nil)
		}
	})()
	for _, l := range listeners {
		a.printf("%s serves %s\n", l.Addr(), b.Caps().Name)
	}
	if err := notify("READY=1"); err != nil {
		complain("systemd was not notified", err)
	}
	return serveUntil(ctx, stop, s, listeners, o.drain, func(err error) { complain("the HTTP server", err) })
}

// mostConnections returns how many connections of clients a process may have that may open so many files. The others are for
// its backend.
func mostConnections(files uint64) int {
	most := int(min(files, 1<<20))
	return max(most-max(most/4, 32), 1)
}

// uponHangup calls f for each SIGHUP, until end is called. All that serve reads is read again without it: a service
// manager that sends it at a reload must not end the server.
func uponHangup(f func()) (end func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGHUP)
	go func() {
		for range ch {
			f()
		}
	}()
	return func() {
		signal.Stop(ch)
		close(ch)
	}
}

// endTime is how long the last requests may take when the server ends.
const endTime = 10 * time.Second

// serveUntil serves until ctx ends, and drains the server then. A second signal ends the process.
func serveUntil(ctx context.Context, stop func(), s *server.Server, listeners []net.Listener, drain time.Duration, complain func(error)) error {
	h := s.HTTP()
	h.ErrorLog = log.New(httpErrors(complain), "", 0)
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- h.Serve(l) }()
	}
	select {
	case err := <-failed:
		_ = h.Close()
		return exit(exitUnreachable, "serve: %w", err)
	case <-ctx.Done():
		stop()
	}
	_ = notify("STOPPING=1")
	bound, cancel := context.WithTimeout(context.Background(), drain+endTime)
	defer cancel()
	err := s.Drain(bound)
	_ = wait.Sleep(bound, drain)
	return errors.Join(err, h.Shutdown(bound))
}

// httpErrors reports what net/http logs, such as that there are too many open files, but not what any stranger can cause.
type httpErrors func(error)

func (e httpErrors) Write(line []byte) (int, error) {
	if text := strings.TrimSpace(string(line)); !strings.HasPrefix(text, "http: TLS handshake error") {
		e(errors.New(text))
	}
	return len(line), nil
}

const tokenHelp = `Token makes a random token for a client of distlock serve. It prints the token, which the client
sends as "Authorization: Bearer TOKEN", and the line for the file of tokens, which has only its
hash. RIGHTS are some of lock, see, ask and break; PREFIX is that of the lock names for which
they hold, or *.`

func (a *app) tokenCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "token NAME RIGHTS PREFIX",
		Short:   "Make a token for a client of distlock serve",
		Long:    tokenHelp,
		Example: `  distlock token ci lock,see ci/`,
		Args:    exactly(3, "three: NAME RIGHTS PREFIX, such as: ci lock,see ci/"),
		RunE: func(_ *cobra.Command, args []string) error {
			for _, arg := range args {
				if len(strings.Fields(arg)) != 1 {
					return usage("token: %s is not one word; want NAME RIGHTS PREFIX, such as: ci lock,see ci/", quoted(arg))
				}
			}
			if prefix, ok := strings.CutSuffix(args[2], "*"); ok && prefix != "" {
				return usage("token: %s is a pattern; want a prefix such as %s, or * for all", quoted(args[2]), quoted(prefix))
			}
			if strings.HasPrefix(args[0], "#") {
				return usage("token: the name %s makes a comment of the line; want one without the #", quoted(args[0]))
			}
			var random [24]byte
			rand.Read(random[:])
			token := hex.EncodeToString(random[:])
			line := fmt.Sprintf("%s sha256:%s %s %s", args[0], server.HashToken(token), args[1], args[2])
			if err := server.CheckAccess(line); err != nil {
				return usage("token: %s", strings.TrimPrefix(err.Error(), "line 1: "))
			}
			a.printf("token: %s\nline:  %s\n", token, line)
			return nil
		},
	}
}

// tls returns the configuration of TLS, or nil if there is none. It refuses addresses that others can
// reach without it.
func (o *serveOptions) tls() (*netaddr.Files[*tls.Config], error) {
	if (o.cert == "") != (o.key == "") {
		return nil, usage("serve: want both --tls-cert and --tls-key")
	}
	if o.clientCA != "" && o.cert == "" {
		return nil, usage("serve: --client-ca needs --tls-cert and --tls-key")
	}
	if len(o.listen) == 0 {
		return nil, usage("serve: --listen is empty; want an address, or no such flag")
	}
	for _, address := range o.listen {
		// Any user can reach a name that is no path.
		if path, ok := strings.CutPrefix(address, "unix:"); ok && (path == "" || path[0] == '@') {
			return nil, usage("serve: --listen %s: want the path of a socket, such as unix:/run/distlock/distlock.sock", address)
		}
		if _, _, err := net.SplitHostPort(address); err != nil && !strings.HasPrefix(address, "unix:") {
			return nil, usage("serve: --listen %s: want HOST:PORT, such as %s, or unix:PATH", address, defaultListen)
		}
		if isLocal(address) || o.insecure {
			continue
		}
		if o.cert == "" {
			return nil, usage("serve: others can reach %s: want --tls-cert and --tls-key, or --insecure if they may take and break all locks", address)
		}
		if o.tokens == "" && o.clientCA == "" {
			return nil, usage("serve: others can reach %s: want --tokens or --client-ca, or --insecure if they may take and break all locks", address)
		}
	}
	if o.cert == "" {
		return nil, nil
	}
	return serverTLS(o.cert, o.key, o.clientCA, o.tokens != "")
}

// isLocal reports whether only this host can reach an address.
func isLocal(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// hostNames returns the names under which the server may be called beside its addresses; nil: any. A page of a
// stranger has none of those for this host.
func (o *serveOptions) hostNames() []string {
	remote := slices.ContainsFunc(o.listen, func(address string) bool { return !isLocal(address) })
	asks := o.tokens != "" || o.clientCA != "" // a page has no token and no certificate
	if remote && asks && len(o.hosts) == 0 || slices.Contains(o.hosts, "*") {
		return nil
	}
	names := []string{"localhost"}
	if name, err := os.Hostname(); remote && err == nil {
		names = append(names, name)
	}
	return append(names, o.hosts...)
}

// serverTLS reads the files of TLS, which are read again for each connection. Clients
// without a certificate are refused where there is a client CA and no file of tokens.
func serverTLS(cert, key, clientCA string, tokens bool) (*netaddr.Files[*tls.Config], error) {
	files, err := netaddr.OpenFiles([]netaddr.File{{Name: "--tls-cert", Path: cert}, {Name: "--tls-key", Path: key}, {Name: "--client-ca", Path: clientCA}}, func(pem [][]byte) (*tls.Config, error) {
		own, err := netaddr.KeyPair("--tls-cert, --tls-key", pem[0], pem[1])
		if err != nil {
			return nil, err
		}
		config := &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
		if clientCA == "" {
			return config, nil
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
		if tokens {
			config.ClientAuth = tls.VerifyClientCertIfGiven
		}
		config.ClientCAs, err = netaddr.Authorities("--client-ca "+clientCA, pem[2])
		return config, err
	})
	if err != nil {
		return nil, usage("serve: %w", err)
	}
	return files, nil
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
