// Package story is shared by the examples, so that each of them shows its locks and little else. It has
// a flag for the locks' backend, hosts that use them, and a log of what each host does.
package story

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	_ "github.com/distlock/distlock/backend/all" // all backends that --url may name
)

// Story is one run of an example. It is safe for concurrent use.
type Story struct {
	url   string
	out   io.Writer
	began time.Time

	mu    sync.Mutex
	hosts []*Host
}

// New starts a story with locks at url, which it writes to out.
func New(url string, out io.Writer) *Story {
	return &Story{url: url, out: out, began: time.Now()}
}

// Main runs a story and writes it to standard output. The locks are in a SQLite file of its own
// unless --url names a backend. It exits with an error if the story fails.
func Main(play func(ctx context.Context, s *Story) error) {
	if err := run(play); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(play func(context.Context, *Story) error) error {
	url := flag.String("url", "", "where the locks are, such as redis://localhost:6379?prefix=locks: (a SQLite file by default)")
	flag.Parse()
	if *url == "" {
		dir, err := os.MkdirTemp("", "distlock-example")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		*url = "sqlite:" + filepath.Join(dir, "locks.db")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s := New(*url, os.Stdout)
	return errors.Join(play(ctx, s), s.Close())
}

// Title writes the title of the next part.
func (s *Story) Title(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "\n%s\n\n", text)
}

// Say writes that who did something just now.
func (s *Story) Say(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%6.2f s  %-10s %s\n", time.Since(s.began).Seconds(), who, fmt.Sprintf(format, args...))
}

// Close closes the hosts, and with them the locks that they hold.
func (s *Story) Close() error {
	s.mu.Lock()
	hosts := s.hosts
	s.hosts = nil
	s.mu.Unlock()
	var err error
	for _, h := range hosts {
		err = errors.Join(err, h.Close())
	}
	return err
}

// Together runs f in some goroutines for each host, and waits for them.
func Together(hosts []*Host, each int, f func(h *Host) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(hosts)*each)
	for i := range errs {
		wg.Go(func() { errs[i] = f(hosts[i%len(hosts)]) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
