package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/cmd/distlock/internal/advice"
	"github.com/distlock/distlock/internal/wait"
)

// adviseOptions are the flags of advise.
type adviseOptions struct {
	prefix  string
	length  time.Duration
	every   time.Duration
	metrics string
	json    bool
}

func (a *app) adviseCommand() *cobra.Command {
	o := adviseOptions{length: 10 * time.Minute, every: time.Second}
	cmd := &cobra.Command{
		Use:   "advise [PREFIX]",
		Short: "Advise on TTLs and waits, from what is seen",
		Long: `Advise looks at the locks of the server again and again, and prints for each class of names
how long they are held and waited for, and what follows from that. In a class, numbers and UUIDs
are replaced by a star: order:17 and order:18 are both of order:*.

  FIXED TTL  for leases that are not renewed: twice the 99.9th percentile of the holds, and a
             quarter more than the longest. The TTL of a renewed lease does not follow from how
             long locks are held, but from pauses and failovers: see docs/ttl.md.
  WAIT       how long it is worth to wait: twice the 99th percentile of the waits.

A quantile needs at least ten samples beyond it, so FIXED TTL needs 10,000 holds and WAIT needs 1,000
waits; with fewer there is a dash. A hold shorter than the
time between two looks is often missed, so the quantiles err on the long side. Looking takes a tenth
of the time at most. Interrupt it to see the result early.

With --metrics, nothing is looked at: the histograms ` + "distlock_hold_duration_seconds" + ` and
` + "distlock_wait_duration_seconds" + ` are read from a file, or from the URL of an exporter or a
distlock server, with its token as in http://:TOKEN@host:7077/metrics.`,
		Example: `  distlock advise --for 1h
  distlock advise order: --for 10m --json
  distlock advise --metrics http://localhost:7077/metrics`,
		Args: onePrefix,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.prefix = append(args, "")[0]; o.metrics == "" {
				return a.advise(&o)
			}
			if len(args) > 0 || cmd.Flags().Changed("for") || cmd.Flags().Changed("every") {
				return usage("advise: metrics have all locks since their program's start; want no PREFIX, --for or --every with --metrics")
			}
			return a.adviseMetrics(&o)
		},
	}
	cmd.Flags().Var(duration(&o.length, false), "for", "for how long to look")
	cmd.Flags().Var(duration(&o.every, false), "every", "how often to look")
	cmd.Flags().Var(nonEmpty(&o.metrics), "metrics", "file or URL with metrics in Prometheus's text format")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

// advise samples the locks of the server.
func (a *app) advise(o *adviseOptions) error {
	return a.withClient(func(ctx context.Context, c *distlock.Client) error {
		r, failed, err := a.sample(ctx, c, o)
		if err != nil {
			return err
		}
		if failed != nil {
			a.warnf("some looks failed, the last one with: %w", failed)
		}
		return a.printAdvice(r.Usages(), o.json)
	})
}

// sample looks at the locks until the time is over or ctx ends. The first look must succeed; later ones may fail, and
// failed is the last of those errors.
func (a *app) sample(ctx context.Context, c *distlock.Client, o *adviseOptions) (r *advice.Recorder, failed, err error) {
	r = advice.NewRecorder()
	p := newProgress(a.err)
	defer p.clear()
	for began, looks := time.Now(), 0; ; looks++ {
		at := time.Now()
		infos, err := list(ctx, c, &lsOptions{prefix: o.prefix})
		switch {
		case ctx.Err() != nil && looks > 0:
			return r, failed, nil
		case err != nil && looks == 0:
			return nil, nil, err
		case err != nil:
			failed = err
		default:
			r.Add(at, infos)
		}
		took, left := time.Since(at), o.length-time.Since(began)
		if left <= 0 {
			return r, failed, nil
		}
		p.show("distlock: looked at %d locks, %s left", len(infos), left.Round(time.Second))
		if wait.Sleep(ctx, min(max(o.every-took, 9*took), left)) != nil {
			return r, failed, nil
		}
	}
}

// adviseMetrics reads metrics from a file or a URL.
func (a *app) adviseMetrics(o *adviseOptions) error {
	text, err := a.openMetrics(o.metrics)
	if err != nil {
		return err
	}
	defer text.Close()
	all, err := advice.FromMetrics(io.LimitReader(text, 64<<20))
	if err != nil {
		return usage("advise: --metrics: %w", err)
	}
	return a.printAdvice(all, o.json)
}

func (a *app) openMetrics(from string) (io.ReadCloser, error) {
	if !strings.HasPrefix(from, "http://") && !strings.HasPrefix(from, "https://") {
		f, err := os.Open(from)
		if err != nil {
			return nil, usage("advise: --metrics: %w", err)
		}
		return f, nil
	}
	a.secrets = append(a.secrets, passwordsOf(from)...)
	client := http.Client{Timeout: openTimeout}
	req, err := http.NewRequest(http.MethodGet, from, nil)
	if err != nil {
		return nil, usage("advise: --metrics: %w", err)
	}
	if token, ok := req.URL.User.Password(); ok && req.URL.User.Username() == "" { // as in the URL of a distlock server
		req.Header.Set("Authorization", "Bearer "+token)
		req.URL.User = nil
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, exit(exitUnreachable, "advise: --metrics: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, exit(exitUnreachable, "advise: --metrics: the answer is %s", resp.Status)
	}
	return resp.Body, nil
}

// adviceJSON is one class in the output of advise with --json. Null stands for too few samples.
type adviceJSON struct {
	Class        string `json:"class"`
	Holds        int    `json:"holds"`
	HeldP999     *int64 `json:"held_p99_9_ms"`
	HeldMax      int64  `json:"held_max_ms"`
	FixedTTL     *int64 `json:"fixed_ttl_ms"`
	Waits        int    `json:"waits"`
	WaitedP99    *int64 `json:"waited_p99_ms"`
	Wait         *int64 `json:"wait_ms"`
	ResolutionMS int64  `json:"resolution_ms"` // shorter times than this are not told apart
}

// millisIf returns a duration in milliseconds, or nil if it is not known.
func millisIf(d time.Duration, known bool) *int64 {
	if !known {
		return nil
	}
	return millis(d)
}

func adviceToJSON(u *advice.Usage) adviceJSON {
	return adviceJSON{
		Class: u.Class,
		Holds: u.Held.Count(), HeldP999: millisIf(u.Held.Quantile(.999)), HeldMax: u.Held.Max().Milliseconds(), FixedTTL: millisIf(u.FixedTTL()),
		Waits: u.Waited.Count(), WaitedP99: millisIf(u.Waited.Quantile(.99)), Wait: millisIf(u.Wait()),
		ResolutionMS: u.Interval.Milliseconds(),
	}
}

func (a *app) printAdvice(all []*advice.Usage, asJSON bool) error {
	if asJSON {
		list := []adviceJSON{}
		for _, u := range all {
			list = append(list, adviceToJSON(u))
		}
		return writeJSON(a.out, list)
	}
	if len(all) == 0 {
		a.warnf("no locks were held or waited for")
		return nil
	}
	return adviceTable(all).write(a.out)
}

// adviceTable has a row for each class.
func adviceTable(all []*advice.Usage) *table {
	t := &table{}
	t.add("CLASS", "HOLDS", "HELD P99.9", "MAX", "FIXED TTL", "WAITS", "WAITED P99", "WAIT")
	for _, u := range all {
		seen, advised := shortIf(u.Interval), shortIf(0)
		t.add(plain(u.Class),
			fmt.Sprint(u.Held.Count()), seen(u.Held.Quantile(.999)), seen(u.Held.Max(), u.Held.Count() > 0), advised(u.FixedTTL()),
			fmt.Sprint(u.Waited.Count()), seen(u.Waited.Quantile(.99)), advised(u.Wait()))
	}
	return t
}

// shortIf formats a duration that may not be known, or only to be less than a resolution.
func shortIf(resolution time.Duration) func(d time.Duration, known bool) string {
	return func(d time.Duration, known bool) string {
		switch {
		case !known:
			return "-"
		case d < resolution:
			return "<" + short(resolution)
		}
		return short(d)
	}
}
