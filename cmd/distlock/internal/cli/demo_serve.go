package cli

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/server"
)

const demoServeHelp = `A server on this host, on a free port, and programs that use its locks: the page shows
holders, waiters, hot names and losses. Everything is in this process and its memory: a
--url is refused, and ` + urlVariable + ` is ignored. SIGINT or SIGTERM ends it.

Exit codes: 0 after SIGINT or SIGTERM; 69 no port is free.`

const demoServeText = `
The page: %[1]s

Try this:
  - Watch the queue for "checkout", the three permits of "gpu", and the readers and the writer of "catalog".
  - Open "report" and ask for it: its holder releases it, and the other program gets it.
  - Open "backup:customers" and break it: type its name. Its holder finds out at its next renewal, within 10 s.
  - Look at "Losses": the program "mailer" sleeps for longer than its TTL, again and again.
  - Take a place in the queue:   curl -X POST '%[1]s/v1/locks/checkout?ttl=10s&wait=60s'
  - Use the command:             distlock --url %[1]s ls

Next, for the locks of your backend:   distlock serve --url URL
Ctrl-C ends the demo.
`

func (a *app) demoServeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "A server with busy locks, to see its page",
		Long:  demoServeHelp,
		Args:  exactly(0, "none"),
		RunE:  func(*cobra.Command, []string) error { return a.demoServe() },
	}
}

func (a *app) demoServe() error {
	if a.url.set || a.local {
		return usage("demo serve: its locks are in its own memory; want neither --url nor --local " +
			"(to see the locks of a backend: distlock serve --url URL)")
	}
	ctx, stop := interruptible()
	defer stop()
	b := memlock.New()
	defer b.Close()
	s, err := server.New(b, server.Options{Hosts: []string{"localhost"}, Version: version()})
	listeners, listenErr := listenAll([]string{"127.0.0.1:0"}, nil)
	if err := cmp.Or(err, listenErr); err != nil {
		return err
	}
	url := "http://" + listeners[0].Addr().String()
	a.printf(demoServeText, url)
	// The server outlives the programs, so that they can release their locks.
	serving, end := context.WithCancel(context.Background())
	defer end()
	go func() {
		defer end()
		if err := runDemoPrograms(ctx, url); err != nil && ctx.Err() == nil {
			a.warn(err)
		}
	}()
	return serveUntil(serving, stop, s, listeners, 0, a.warn)
}

// runDemoPrograms runs the programs, each instance with a client of its own, until ctx ends and all locks are released.
func runDemoPrograms(ctx context.Context, url string) error {
	var wg sync.WaitGroup
	for _, p := range demoPrograms(url) {
		for i := range p.instances {
			c, err := distlock.Open(ctx, url, &distlock.Options{Meta: map[string]string{"program": fmt.Sprintf("%s-%d", p.name, i+1)}})
			if err != nil {
				return err
			}
			wg.Go(func() {
				defer c.Close()
				for ctx.Err() == nil {
					_ = p.turn(ctx, c) // fails where a viewer broke the lock
					_ = wait.Sleep(ctx, p.pause)
				}
			})
		}
	}
	wg.Wait()
	return nil
}

// demoProgram is a program whose instances repeat a turn, with a pause after it.
type demoProgram struct {
	instances int
	name      string
	pause     time.Duration
	turn      func(ctx context.Context, c *distlock.Client) error
}

func demoPrograms(url string) []demoProgram {
	work := func(d time.Duration) func(context.Context) error {
		return func(ctx context.Context) error { return wait.Sleep(ctx, d) }
	}
	return []demoProgram{
		{1, "backup", time.Second, func(ctx context.Context, c *distlock.Client) error {
			return c.Mutex("backup:customers", distlock.WithMeta(map[string]string{"ticket": "OPS-1207"})).Do(ctx, work(time.Hour))
		}},
		{5, "checkout", time.Second, func(ctx context.Context, c *distlock.Client) error {
			return c.Mutex("checkout").Do(ctx, work(wait.Jitter(2*time.Second)))
		}},
		{5, "trainer", time.Second, func(ctx context.Context, c *distlock.Client) error {
			return c.Semaphore("gpu", 3).Do(ctx, work(wait.Jitter(8*time.Second)))
		}},
		{3, "web", time.Second, func(ctx context.Context, c *distlock.Client) error {
			return c.RWMutex("catalog").RDo(ctx, work(wait.Jitter(3*time.Second)))
		}},
		{1, "price-import", 10 * time.Second, func(ctx context.Context, c *distlock.Client) error {
			return c.RWMutex("catalog").Do(ctx, work(2*time.Second))
		}},
		{2, "report", time.Second, func(ctx context.Context, c *distlock.Client) error {
			whenAsked := distlock.Revocable(func(l *distlock.Lease) { _ = l.Unlock(ctx) })
			return c.Mutex("report", whenAsked).Do(ctx, work(time.Hour))
		}},
		{1, "mailer", 10 * time.Second, func(ctx context.Context, _ *distlock.Client) error {
			// Like a program on a paused host, it sleeps for longer than its TTL, and renews too late.
			b, err := openURL(ctx, url)
			if err != nil {
				return err
			}
			defer b.Close()
			h := driver.Hold{Name: "mail", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 4 * time.Second}
			if _, err = b.Acquire(ctx, driver.Request{Hold: h, Meta: map[string]string{"program": "mailer"}}); err == nil && wait.Sleep(ctx, 6*time.Second) == nil {
				err = b.Renew(ctx, []driver.Hold{h})[0]
			}
			return err
		}},
	}
}
