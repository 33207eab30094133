package cli

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	_ "modernc.org/sqlite" // the driver "sqlite" of database/sql

	"github.com/distlock/distlock"
)

// order tells a process of buyers, which is this program with the command "demo buyers", what to do. The
// process reads it from standard input, since other users can see arguments. It prints "ready", waits
// for another line, and prints its visits.
type order struct {
	Shop    string
	URL     string // of the locks; empty: buy without a lock
	Workers int
	Think   time.Duration
}

// visit is one buyer's turn under the lock, in nanoseconds since 1970. All the
// processes are on one machine, so their clocks are one.
type visit struct {
	Process          int
	Asked, Got, Left int64
}

// sendBuyers starts the processes, lets them begin together, and collects the visits.
func sendBuyers(ctx context.Context, processes int, what order) ([]visit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	crowd := make([]*buyerProcess, processes)
	for i := range crowd {
		b, err := startBuyers(ctx, what)
		if err != nil {
			return nil, err
		}
		defer b.end()
		crowd[i] = b
	}
	for _, b := range crowd {
		if err := b.await("ready"); err != nil {
			return nil, err
		}
	}
	for _, b := range crowd {
		fmt.Fprintln(b.in, "go")
	}
	var all []visit
	for i, b := range crowd {
		visits, err := b.visits(i)
		if err != nil {
			return nil, err
		}
		all = append(all, visits...)
	}
	return all, nil
}

// buyerProcess is a process of buyers.
type buyerProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr strings.Builder
	ended  error
	once   sync.Once
}

func startBuyers(ctx context.Context, what order) (*buyerProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &buyerProcess{cmd: exec.CommandContext(ctx, self, "demo", "buyers")}
	b.cmd.Stderr = &b.stderr
	if b.in, err = b.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	b.out = bufio.NewReader(out)
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	return b, json.NewEncoder(b.in).Encode(what)
}

// end waits for the end of the process.
func (b *buyerProcess) end() {
	b.once.Do(func() {
		b.in.Close()
		b.ended = b.cmd.Wait()
	})
}

// await waits for a line.
func (b *buyerProcess) await(want string) error {
	line, err := b.out.ReadString('\n')
	if err == nil && strings.TrimSpace(line) == want {
		return nil
	}
	return b.failure(err)
}

func (b *buyerProcess) visits(process int) ([]visit, error) {
	var visits []visit
	if err := json.NewDecoder(b.out).Decode(&visits); err != nil {
		return nil, b.failure(err)
	}
	for i := range visits {
		visits[i].Process = process
	}
	return visits, nil
}

// failure returns the error of a process, in its own words and with its exit code.
func (b *buyerProcess) failure(err error) error {
	b.end()
	why := reason(errors.New(strings.TrimSpace(b.stderr.String())))
	if why == "" {
		why = errors.Join(err, b.ended).Error()
	}
	code := exitFailure
	if e := (*exec.ExitError)(nil); errors.As(b.ended, &e) && e.ExitCode() > 0 {
		code = e.ExitCode()
	}
	return exit(code, "demo: %s", why)
}

func (a *app) buyersCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "buyers",
		Short:  "Be a process of buyers, for the other demos",
		Hidden: true,
		Args:   exactly(0, "none"),
		RunE:   func(*cobra.Command, []string) error { return a.buyers(bufio.NewReader(os.Stdin)) },
	}
}

// buyers is the main function of a process of buyers.
func (a *app) buyers(in *bufio.Reader) error {
	ctx, cancel := interruptible()
	defer cancel()
	var what order
	line, err := in.ReadBytes('\n')
	if err != nil {
		return usage("demo buyers: no order on standard input; want: distlock demo oversell")
	}
	if err := json.Unmarshal(line, &what); err != nil {
		return err
	}
	c, err := a.newCrowd(ctx, what)
	if err != nil {
		return err
	}
	defer c.close()
	a.printf("ready\n")
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	if err := c.shopUntilSoldOut(ctx); err != nil {
		return err
	}
	return json.NewEncoder(a.out).Encode(c.visits)
}

// crowd are the buyers of this process.
type crowd struct {
	order
	shop  *shop
	locks *distlock.Client // nil: buy without a lock

	mu     sync.Mutex
	visits []visit
}

func (a *app) newCrowd(ctx context.Context, what order) (*crowd, error) {
	c := &crowd{order: what, visits: []visit{}}
	var err error
	if c.shop, err = openShop(ctx, what.Shop); err != nil {
		return nil, err
	}
	if what.URL != "" {
		a.url = text{s: what.URL, set: true}
		c.locks, err = a.client(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.shop.close())
	}
	return c, nil
}

func (c *crowd) close() error {
	if c.locks == nil {
		return c.shop.close()
	}
	return errors.Join(c.locks.Close(), c.shop.close())
}

// shopUntilSoldOut lets every buyer buy again and again.
func (c *crowd) shopUntilSoldOut(ctx context.Context) error {
	errs := make([]error, c.Workers)
	var wg sync.WaitGroup
	for i := range c.Workers {
		wg.Go(func() {
			for more := true; more && errs[i] == nil; {
				more, errs[i] = c.buy(ctx)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// buy buys an item, under the lock if there is one.
func (c *crowd) buy(ctx context.Context) (more bool, err error) {
	if c.locks == nil {
		return c.shop.buy(ctx, c.Think)
	}
	v := visit{Asked: time.Now().UnixNano()}
	err = c.locks.Mutex("shop:item").Do(ctx, func(ctx context.Context) error {
		v.Got = time.Now().UnixNano()
		more, err = c.shop.buy(ctx, c.Think)
		v.Left = time.Now().UnixNano()
		return err
	})
	if err == nil {
		c.mu.Lock()
		c.visits = append(c.visits, v)
		c.mu.Unlock()
	}
	return more, err
}

// shop is a SQLite file with a row for each sale, which has the stock that was left. The first row
// has the stock before all sales.
type shop struct{ db *sql.DB }

func openShop(ctx context.Context, path string) (*shop, error) {
	q := url.Values{"_pragma": {"busy_timeout(20000)", "journal_mode(wal)", "synchronous(off)"}}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &shop{db}, nil
}

func (s *shop) close() error { return s.db.Close() }

// fill puts items into the shop.
func (s *shop) fill(ctx context.Context, stock int) error {
	_, err := s.db.ExecContext(ctx, `CREATE TABLE sale (number INTEGER PRIMARY KEY AUTOINCREMENT, stock INTEGER NOT NULL, fence INTEGER NOT NULL)`)
	if err != nil {
		return err
	}
	return s.write(ctx, stock, 0)
}

func (s *shop) write(ctx context.Context, stock int, fence uint64) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO sale (stock, fence) VALUES (?, ?)`, stock, int64(fence))
	return err
}

// buy reads the stock, thinks, and writes one less, even if other buyers changed it meanwhile. It reports
// false if nothing is left.
func (s *shop) buy(ctx context.Context, think time.Duration) (bool, error) {
	var stock int
	err := s.db.QueryRowContext(ctx, `SELECT stock FROM sale ORDER BY number DESC LIMIT 1`).Scan(&stock)
	if err != nil || stock == 0 {
		return false, err
	}
	time.Sleep(think)
	return true, s.write(ctx, stock-1, distlock.Fence(ctx))
}

// fences returns the fences of all sales, in the order of the sales.
func (s *shop) fences(ctx context.Context) ([]uint64, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT fence FROM sale WHERE number > 1 ORDER BY number`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var fences []uint64
	for rows.Next() {
		var f int64
		if err := rows.Scan(&f); err != nil {
			return nil, err
		}
		fences = append(fences, uint64(f))
	}
	return fences, rows.Err()
}
