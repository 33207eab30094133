package report

import (
	"fmt"
	"slices"
	"strings"
)

const introduction = `# Performance

<!-- "make bench" writes this file and its charts from bench/results.json and the text in bench/report, and "make performance" without measuring. -->

[All tables](../bench/RESULTS.md) have every backend, size and peer. [bench](../bench/README.md) says how each library was used, and **` + "`make bench`" + `** measures anew.
The contenders of a table take turns on one server, so compare within a backend only. A figure is the median over the rounds, *longest* is the maximum.
`

// question is a chapter of the document for users: what they ask, and one table and one chart that answer.
type question struct {
	title, text string
	chart       drawing
	families    []string // the rows of several begin with the server
	sizes       []int    // all, if there are none
	contenders  []string // all, if there are none
	figures     []string
	across      string // the figure that each size has a column for, before those of the last size
}

var redisPeers = []string{"raw rueidis", "distlock", "redsync", "redislock 100 ms", "rueidislock"}

var questions = []question{
	{
		title: "What does a free lock cost?",
		text: "One goroutine locks and unlocks a name that nobody else wants. *Raw* has no fence, no renewal and no notice of a loss. MariaDB, PostgreSQL and etcd flush each change to their disk: " +
			"that is most of what they cost.",
		chart: drawing{
			file: "uncontended.svg", title: "Redis: N goroutines, each with a free lock", family: "redis/uncontended", figure: "pairs/s", label: "locks and unlocks/s",
			x: "goroutines", logY: true, contenders: redisPeers,
		},
		families: []string{"redis/uncontended", "etcd/uncontended", "zookeeper/uncontended", "mysql/uncontended", "postgres/uncontended", "sqlite/uncontended"},
		sizes:    []int{0, 1},
		contenders: append([]string{"raw put, delete", "concurrency.Mutex", "raw create, delete", "zk.Lock", "raw UPDATE", "distlock Row", "cirello.io/pglock"},
			redisPeers...),
		figures: []string{"pairs/s", "p50-µs", "p99-µs"},
	},
	{
		title: "How long do other processes wait?",
		text:  "N clients that share nothing wait for one lock, which each holds for a millisecond. Where the fewest turns are 0, a client got nothing. Peers that poll need few commands, since most of their clients sleep. Goroutines of one process wait as one client, and [hand the lock to each other](../bench/RESULTS.md#waiters-in-one-process).",
		chart: drawing{
			file: "waiters.svg", title: "Redis: the longest wait for one lock", family: "redis/remote", figure: "longest-ms", label: "ms",
			x: "waiting clients", logY: true,
		},
		families: []string{"redis/remote"},
		sizes:    []int{4, 64},
		figures:  []string{"acq/s", "commands/acq", "hand-off-p50-ms", "longest-ms", "fewest turns", "most turns"},
	},
	{
		title:    "And on other stores?",
		text:     "Acquisitions a second with 1, 4, 16 and 64 other clients.",
		families: []string{"etcd/remote", "zookeeper/remote", "mysql/remote", "postgres/remote", "sqlite/remote"},
		sizes:    []int{1, 4, 16, 64},
		across:   "acq/s",
		figures:  []string{"commands/acq", "server-µs/acq", "longest-ms"},
	},
	{
		title:    "And readers beside writers?",
		text:     "8 clients that read and 2 that write, each for a millisecond.",
		families: []string{"redis/readwrite", "etcd/readwrite", "zookeeper/readwrite", "mysql/readwrite", "postgres/readwrite", "sqlite/readwrite"},
		sizes:    []int{0, 8},
		figures:  []string{"acq/s", "writes/s", "longest write wait ms", "commands/acq"},
	},
	{
		title: "What does a server in between cost?",
		text: "One `distlock serve` before a Redis, on one machine whose processors are the limit. *raw HTTP* is two requests that lock nothing. " +
			"A Go program that can reach the backend is faster without a server.",
		chart: drawing{
			file: "server.svg", title: "N goroutines, each with a free lock", family: "server/uncontended", figure: "pairs/s", label: "locks and unlocks/s",
			x: "goroutines", logY: true,
		},
		families: []string{"server/uncontended"},
		sizes:    []int{1, 128},
		figures:  []string{"pairs/s", "p50-µs", "p99-µs"},
	},
	{
		title: "What do many held locks cost?",
		text:  "One client holds N locks on Redis for 6 s, and renews them each second; others lock and unlock beside it through the same client. With the default TTL there are a tenth of these renewals.",
		chart: drawing{
			file: "held.svg", title: "Redis: N held locks, renewed each second", family: "redis/held", figure: "server-CPU-%", label: "server, % of a core",
			x: "held locks", logY: true, contenders: []string{"distlock", "none held"},
		},
		families: []string{"redis/held"},
		figures:  []string{"client-CPU-%", "server-CPU-%", "commands/s", "heap-B/lease", "goroutines", "others-p99-ms"},
	},
}

// answer returns the table of a question in Markdown, or nothing if nothing of it was measured.
func (r *Results) answer(q question) string {
	if q.across != "" {
		return r.answerAcross(q)
	}
	var rows strings.Builder
	first := "on"
	if len(q.families) == 1 {
		first = "N"
	}
	for _, family := range q.families {
		for _, s := range r.family(family) {
			switch {
			case len(q.sizes) > 0 && !slices.Contains(q.sizes, s.size()):
			case first == "N":
				q.rows(&rows, fmt.Sprint(s.size()), s)
			default:
				q.rows(&rows, s.Server, s)
			}
		}
	}
	if rows.Len() == 0 {
		return ""
	}
	return tableHead(first, q.figures) + rows.String()
}

// answerAcross returns a table with a row for each contender of a family, in which each size has a column.
func (r *Results) answerAcross(q question) string {
	var rows strings.Builder
	var columns []string
	for _, size := range q.sizes {
		columns = append(columns, fmt.Sprint(size))
	}
	for _, f := range q.figures {
		columns = append(columns, f+" at "+fmt.Sprint(q.sizes[len(q.sizes)-1]))
	}
	for _, family := range q.families {
		all := r.family(family)
		all = slices.DeleteFunc(all, func(s Scenario) bool { return !slices.Contains(q.sizes, s.size()) })
		if len(all) != len(q.sizes) {
			continue
		}
		last := all[len(all)-1]
		for _, row := range last.Rows {
			wide := Row{Contender: row.Contender}
			for _, s := range all {
				wide.Figures = append(wide.Figures, Figure{q.across, Value(s.figure(row.Contender, q.across))})
			}
			for _, name := range q.figures {
				wide.Figures = append(wide.Figures, Figure{name, Value(last.figure(row.Contender, name))})
			}
			fmt.Fprintf(&rows, "| %s |", last.Server)
			wide.write(&rows)
		}
	}
	if rows.Len() == 0 {
		return ""
	}
	return tableHead("on", columns) + rows.String()
}

// tableHead returns the first two lines of a table.
func tableHead(first string, columns []string) string {
	head, line := "| "+first+" | |", "|---|---|"
	for _, c := range columns {
		head, line = head+" "+strings.ReplaceAll(c, "-", " ")+" |", line+"---:|"
	}
	return "\n" + head + "\n" + line + "\n"
}

func (q question) rows(to *strings.Builder, first string, s Scenario) {
	for _, row := range s.Rows {
		if len(q.contenders) > 0 && !slices.Contains(q.contenders, row.Contender) {
			continue
		}
		cut := Row{Contender: row.Contender}
		for _, name := range q.figures {
			cut.Figures = append(cut.Figures, Figure{name, Value(s.figure(row.Contender, name))})
		}
		fmt.Fprintf(to, "| %s |", first)
		cut.write(to)
	}
}
