// Package story is what the examples share, so that each of them shows its lock and
// little else: a flag that says where the locks are, hosts that use them, and lines
// that say when who did what.
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

	_ "github.com/distlock/distlock/backend/all" // whatever --url names
)

// Story is one run of an example. It is safe for concurrent use.
type Story struct {
	url   string
	out   io.Writer
	began time.Time

	mu    sync.Mutex
	hosts []*Host
}

// New begins a story whose locks are at url and which is told to out.
func New(url string, out io.Writer) *Story {
	return &Story{url: url, out: out, began: time.Now()}
}

// Main tells a story to whoever started the program, with locks in a SQLite file of
// its own unless --url names a backend. It ends the program if the story fails.
func Main(tell func(ctx context.Context, s *Story) error) {
	if err := run(tell); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(tell func(context.Context, *Story) error) error {
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
	return errors.Join(tell(ctx, s), s.Close())
}

// Title begins a part of the story.
func (s *Story) Title(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "\n%s\n\n", text)
}

// Say tells that who did something just now.
func (s *Story) Say(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%6.2f s  %-10s %s\n", time.Since(s.began).Seconds(), who, fmt.Sprintf(format, args...))
}

// Close closes the hosts, and the locks that they hold with them.
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

// Together runs f on every host at once, and waits for all.
func Together(hosts []*Host, f func(h *Host) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(hosts))
	for i, h := range hosts {
		wg.Go(func() { errs[i] = f(h) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
