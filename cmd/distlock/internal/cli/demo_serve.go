package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
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
holders, waiters, hot names and losses. Everything is in this process and its memory. No
other backend is used: a --url is refused, and ` + urlVariable + ` is ignored.

SIGINT or SIGTERM ends it. Exit codes: 0 after SIGINT or SIGTERM; 69 no port is free.`

const demoServeText = `
The page: %[1]s

Try this:
  - Watch the queue for "checkout", the three permits of "gpu", and the readers and the writer of "catalog".
  - Open "report" and ask for it: its holder releases it, and the other program gets it.
  - Open "backup:customers" and break it: type its name. Its holder finds out at its next renewal, within 10 s.
  - Look at "Losses": the program "mailer" sleeps for longer than its TTL, again and again.
  - Take a place in the queue:   curl -X POST '%[1]s/v1/locks/checkout?ttl=10s&wait=60s'
  - Use the command:             distlock --url %[1]s ls

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
	o := &serveOptions{listen: []string{"127.0.0.1:0"}}
	s, err := server.New(b, server.Options{Hosts: o.hostNames(), Version: version()})
	if err != nil {
		return err
	}
	listeners, err := listenAll(o.listen, nil)
	if err != nil {
		return err
	}
	url := "http://" + listeners[0].Addr().String()
	a.printf(demoServeText, url)
	// The server outlives the programs, so that they can release their locks.
	serving, end := context.WithCancel(context.Background())
	defer end()
	go func() {
		defer end()
		if err := runDemoPrograms(ctx, url); err != nil {
			a.warn(err)
		}
	}()
	return serveUntil(serving, stop, s, listeners, 0, a.warn)
}

// demoProgram is a program of the demo. It repeats its work until ctx ends.
type demoProgram struct {
	name string
	turn func(ctx context.Context, c *distlock.Client) error
}

// demoPrograms are the programs, most of them with several instances.
func demoPrograms() (all []demoProgram) {
	add := func(instances int, name string, turn func(context.Context, *distlock.Client) error) {
		for i := range instances {
			p := demoProgram{name, turn}
			if instances > 1 {
				p.name = fmt.Sprintf("%s-%d", name, i+1)
			}
			all = append(all, p)
		}
	}
	add(1, "backup", func(ctx context.Context, c *distlock.Client) error {
		ticket := distlock.WithMeta(map[string]string{"ticket": "OPS-1207"})
		return c.Mutex("backup:customers", ticket).Do(ctx, work(time.Hour))
	})
	add(5, "checkout", func(ctx context.Context, c *distlock.Client) error {
		return c.Mutex("checkout").Do(ctx, work(wait.Jitter(2*time.Second)))
	})
	add(5, "trainer", func(ctx context.Context, c *distlock.Client) error {
		return c.Semaphore("gpu", 3).Do(ctx, work(wait.Jitter(8*time.Second)))
	})
	add(3, "web", func(ctx context.Context, c *distlock.Client) error {
		err := c.RWMutex("catalog").RDo(ctx, work(wait.Jitter(3*time.Second)))
		return errors.Join(err, wait.Sleep(ctx, time.Second))
	})
	add(1, "price-import", func(ctx context.Context, c *distlock.Client) error {
		err := c.RWMutex("catalog").Do(ctx, work(2*time.Second))
		return errors.Join(err, wait.Sleep(ctx, 10*time.Second))
	})
	add(2, "counter", func(ctx context.Context, c *distlock.Client) error {
		err := c.Mutex("visits").Do(ctx, work(wait.Jitter(30*time.Millisecond)))
		return errors.Join(err, wait.Sleep(ctx, 50*time.Millisecond))
	})
	add(2, "report", holdUntilAsked)
	return all
}

// work returns a function that works for a time, or until ctx ends.
func work(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error { return wait.Sleep(ctx, d) }
}

// holdUntilAsked holds a lock until its release is requested.
func holdUntilAsked(ctx context.Context, c *distlock.Client) error {
	asked := make(chan struct{})
	revocable := distlock.Revocable(func(*distlock.Lease) { close(asked) })
	return c.Mutex("report", revocable).Do(ctx, func(ctx context.Context) error {
		select {
		case <-asked:
		case <-ctx.Done():
		}
		return nil
	})
}

// sleepTooLong takes a lock, sleeps for longer than its TTL, like a program on a paused host, and renews
// too late.
func sleepTooLong(ctx context.Context, url string) error {
	b, err := openURL(ctx, url)
	if err != nil {
		return err
	}
	defer b.Close()
	h := driver.Hold{Name: "mail", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 4 * time.Second}
	host, _ := os.Hostname()
	meta := map[string]string{"program": "mailer", "host": host}
	if _, err = b.Acquire(ctx, driver.Request{Hold: h, Meta: meta}); err != nil {
		return err
	}
	if wait.Sleep(ctx, 6*time.Second) != nil {
		return b.Release(context.WithoutCancel(ctx), h)
	}
	if err := b.Renew(ctx, []driver.Hold{h})[0]; !errors.Is(err, driver.ErrLost) {
		return err
	}
	return wait.Sleep(ctx, 10*time.Second)
}

// runDemoPrograms runs them, each with a client of its own, until ctx ends. It returns once all locks are
// released.
func runDemoPrograms(ctx context.Context, url string) error {
	var clients []*distlock.Client
	var wg sync.WaitGroup
	repeat := func(turn func() error) {
		wg.Go(func() {
			for ctx.Err() == nil {
				if turn() != nil { // such as a lock that a viewer broke
					_ = wait.Sleep(ctx, time.Second)
				}
			}
		})
	}
	var failed error
	for _, p := range demoPrograms() {
		c, err := demoClient(ctx, url, p.name)
		if err != nil {
			failed = err
			break
		}
		clients = append(clients, c)
		repeat(func() error { return p.turn(ctx, c) })
	}
	repeat(func() error { return sleepTooLong(ctx, url) })
	wg.Wait()
	for _, c := range clients {
		failed = errors.Join(failed, c.Close())
	}
	return failed
}

func demoClient(ctx context.Context, url, program string) (*distlock.Client, error) {
	b, err := openURL(ctx, url)
	if err != nil {
		return nil, err
	}
	return newClient(b, &distlock.Options{Meta: map[string]string{"program": program}})
}
