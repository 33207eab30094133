package report

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/distlock/distlock/bench/chart"
)

// The places below the project's root.
const (
	ResultsFile  = "bench/results.json"
	documentFile = "docs/performance.md"
	chartFolder  = "docs/performance"
)

// Write writes the results, the document and its charts into their places below the project's root.
func (r *Results) Write(root string) error {
	var lines []string // one a scenario
	for _, s := range r.Scenarios {
		b, err := json.Marshal(s)
		if err != nil {
			return err
		}
		lines = append(lines, string(b))
	}
	text := `{"Scenarios": [` + "\n" + strings.Join(lines, ",\n") + "\n]}\n"
	if err := os.WriteFile(root+"/"+ResultsFile, []byte(text), 0o644); err != nil {
		return err
	}
	stored, err := Read(root + "/" + ResultsFile) // which has rounded
	if err != nil {
		return err
	}
	files, err := stored.Files()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(root+"/"+chartFolder, 0o755); err != nil {
		return err
	}
	for path, text := range files {
		if err := os.WriteFile(root+"/"+path, text, 0o644); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}

// Files returns the document and its charts, by path from the project's root.
func (r *Results) Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	var doc strings.Builder
	doc.WriteString(introduction)
	r.conditions(&doc)
	for _, s := range sections {
		if !slices.ContainsFunc(s.families, func(f string) bool { return len(r.family(f)) > 0 }) {
			continue
		}
		fmt.Fprintf(&doc, "\n## %s\n\n%s\n", s.title, s.text)
		for _, d := range s.charts {
			svg, err := r.draw(d)
			if err != nil {
				return nil, err
			}
			if svg == nil {
				continue
			}
			files[path.Join(chartFolder, d.file)] = svg
			fmt.Fprintf(&doc, "\n![%s](performance/%s)\n", d.title, d.file)
		}
		for _, f := range s.families {
			doc.WriteString(Table(r.family(f)...))
		}
	}
	files[documentFile] = []byte(doc.String())
	return files, nil
}

const introduction = `# Performance

<!-- "make bench" writes this file and its charts, from bench/results.json and the text in bench/report. -->

All contenders of a table take turns on one server of their own, in rounds; a figure is the median over the rounds, and *longest* the
maximum. So the ratios within a table hold even on a busy machine, and figures of different tables do not compare. Each goroutine has
a context that can be cancelled. [bench/README.md](../bench/README.md) says how each scenario works, and how each library is used.
**` + "`make bench`" + `** measures all of it anew.
`

// conditions lists where and when the scenarios ran, without repetition.
func (r *Results) conditions(doc *strings.Builder) {
	for _, what := range []struct {
		title string
		of    func(Scenario) string
	}{
		{"Machine", func(s Scenario) string { return s.Machine }},
		{"Go", func(s Scenario) string { return s.Go }},
		{"Servers, on the same machine", func(s Scenario) string { return s.Server }},
		{"Date and commit", func(s Scenario) string { return s.Date + " " + s.Commit }},
	} {
		var values []string
		for _, s := range r.Scenarios {
			values = append(values, what.of(s))
		}
		slices.Sort(values)
		fmt.Fprintf(doc, "\n- %s: %s", what.title, strings.Join(slices.Compact(values), "; "))
	}
	doc.WriteString("\n")
}

// family returns the scenarios that differ only in a size, from small to large.
func (r *Results) family(name string) (all []Scenario) {
	for _, s := range r.Scenarios {
		if s.family() == name && len(s.Rows) > 0 {
			all = append(all, s)
		}
	}
	return all
}

// Table returns the measurements of scenarios that differ only in a size, in Markdown.
func Table(all ...Scenario) string {
	if len(all) == 0 || len(all[len(all)-1].Rows) == 0 {
		return ""
	}
	var doc strings.Builder
	last := all[len(all)-1]
	title := strings.TrimSuffix(last.Title, ".")
	first := ""
	if len(all) > 1 {
		size := fmt.Sprint(last.size())
		title, first = strings.Replace(title, size, "N", 1), " N |"
	}
	fmt.Fprintf(&doc, "\n**%s.** %s; %d rounds, load average before %s.\n\n|%s |", title, last.Server, last.Rounds, all[0].Load, first)
	for _, f := range last.Rows[0].Figures {
		fmt.Fprintf(&doc, " %s |", strings.ReplaceAll(f.Name, "-", " "))
	}
	fmt.Fprintf(&doc, "\n|%s---|%s\n", strings.Repeat("---:|", min(len(first), 1)), strings.Repeat("---:|", len(last.Rows[0].Figures)))
	for _, s := range all {
		for _, row := range s.Rows {
			doc.WriteString("|")
			if first != "" {
				fmt.Fprintf(&doc, " %d |", s.size())
			}
			row.write(&doc)
		}
	}
	return doc.String()
}

func (row Row) write(doc *strings.Builder) {
	name := row.Contender
	if strings.HasPrefix(name, "distlock") {
		name = "**" + name + "**"
	}
	fmt.Fprintf(doc, " %s |", name)
	for _, f := range row.Figures {
		fmt.Fprintf(doc, " %s |", number(float64(f.Value)))
	}
	doc.WriteString("\n")
}

func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 0):
		return "∞"
	}
	return chart.Number(v)
}

// drawing is a chart of one figure of a family: curves over its sizes.
type drawing struct {
	file, title string
	family      string
	figure      string
	label       string
	x           string // the label of the sizes
	logY        bool
}

// colors are the places in the palette of contenders that occur in several charts.
var colors = map[string]int{
	"distlock": 0, "redsync": 1, "rueidislock": 2, "redislock 100 ms": 3, "raw rueidis": 4, "raw go-redis": 6,
	"distlock on rueidis": 7, "distlock on go-redis": 5,
	"concurrency.Mutex": 1, "zk.Lock": 1, "a channel, without a server": 4,
}

// draw returns nothing if the family was not measured.
func (r *Results) draw(d drawing) ([]byte, error) {
	all := r.family(d.family)
	if len(all) == 0 {
		return nil, nil
	}
	var series []chart.Series
	for i, row := range all[len(all)-1].Rows {
		color, ok := colors[row.Contender]
		if !ok {
			color = i
		}
		line := chart.Series{Name: row.Contender, Color: color, Bold: row.Contender == "distlock"}
		for _, s := range all {
			line.X = append(line.X, float64(s.size()))
			line.Y = append(line.Y, s.figure(row.Contender, d.figure))
		}
		series = append(series, line)
	}
	x, y := chart.Axis{Label: d.x, Log: true}, chart.Axis{Label: d.label, Log: d.logY}
	return chart.Curves{Title: d.title, X: x, Y: y, Series: series}.SVG()
}

// section is a chapter of the document.
type section struct {
	title, text string
	charts      []drawing
	families    []string // whose tables follow
}

var sections = []section{
	{
		title: "Waiters in other processes",
		text:  "Each waiter is a client of its own, and each holder keeps the lock for a millisecond. A round takes at least 10 ms for each client, and 100 ms where it is not on Redis. On databases each client has a pool of its own, and *commands* are statements. *Fewest* and *most turns* are those of one client: where the fewest are 0 a client got nothing, and peers that poll need few commands since most of their clients sleep.",
		charts: []drawing{
			{file: "redis-remote-commands.svg", title: "Redis: commands for an acquisition", family: "redis/remote", figure: "commands/acq", label: "commands", x: "waiting clients", logY: true},
			{file: "redis-remote-longest.svg", title: "Redis: the longest wait", family: "redis/remote", figure: "longest-ms", label: "ms", x: "waiting clients", logY: true},
			{file: "redis-remote-rate.svg", title: "Redis: acquisitions a second", family: "redis/remote", figure: "acq/s", label: "acquisitions/s", x: "waiting clients"},
			{file: "etcd-remote-commands.svg", title: "etcd: requests for an acquisition", family: "etcd/remote", figure: "commands/acq", label: "requests", x: "waiting sessions"},
			{file: "zookeeper-remote-commands.svg", title: "ZooKeeper: requests for an acquisition", family: "zookeeper/remote", figure: "commands/acq", label: "requests", x: "waiting sessions"},
		},
		families: []string{"redis/remote", "etcd/remote", "zookeeper/remote", "postgres/remote", "mysql/remote", "postgres/readwrite", "mysql/readwrite"},
	},
	{
		title: "Waiters in one process",
		text:  "They are one contender to the server, and pass the lock to each other.",
		charts: []drawing{
			{file: "redis-local.svg", title: "A hand-off between goroutines", family: "redis/local", figure: "µs/hand-off", label: "µs", x: "waiting goroutines", logY: true},
		},
		families: []string{"redis/local", "redis/onelock", "redis/fair"},
	},
	{
		title:    "Several processes of several goroutines",
		text:     "*max/min* is the share of the luckiest by the share of the unluckiest; ∞ if one got nothing.",
		families: []string{"redis/processes", "redis/handoff"},
	},
	{
		title:    "Stories on Redis",
		text:     "A shop changes a counter under the lock, and no change may be lost. Of all callers that want a token, one may refresh it.",
		families: []string{"redis/shop", "redis/token"},
	},
	{
		title:    "Commands and fleets",
		text:     "How long a command under a lock takes to run `true`, from its start to its end; and how long 50 clients need to find which of them runs a job.",
		families: []string{"redis/command", "redis/fleet"},
	},
	{
		title:    "Uncontended",
		text:     "Each of N goroutines has a name of its own. Ratios are those to the bare commands, within a round.",
		families: []string{"redis/uncontended", "etcd/uncontended", "zookeeper/uncontended", "mysql/uncontended", "postgres/uncontended", "sqlite/uncontended"},
	},
	{
		title: "Many names and many leases on Redis",
		text:  "*Others* are callers who lock and unlock other names through the same client.",
		charts: []drawing{
			{file: "redis-names.svg", title: "Pairs a second, on names at random", family: "redis/names", figure: "pairs/s", label: "pairs/s", x: "names"},
		},
		families: []string{"redis/names", "redis/held", "redis/leases"},
	},
	{
		title:    "Through a server",
		text:     "One `distlock serve` in a process of its own, with its usual log, before a Redis on the same machine. *Server* figures are of both. A watch or a page is one HTTP connection. *raw HTTP* is the least that the two requests of a pair can cost: on a machine whose processors are busy, it is also the most that a server can reach. The goals are half of the pairs of *distlock on Redis* at 16 and 128 goroutines, and a hand-off that takes 0.3 ms longer at most. Both are missed: the processors are the limit, and in profiles net/http, JSON, the log, the scheduler and the collector share them. So Go programs that can reach the backend do better without a server.",
		families: []string{"server/uncontended", "server/handoff", "server/held", "server/watches", "server/pages"},
	},
	{
		title:    "etcd and ZooKeeper",
		text:     "One server of each.",
		families: []string{"etcd/processes", "etcd/handoff", "etcd/handoff-busy", "etcd/leases", "zookeeper/processes", "zookeeper/handoff", "zookeeper/handoff-busy"},
	},
	{
		title:    "Databases",
		text:     "Each commit is flushed, except on SQLite.",
		families: []string{"mysql/onelock", "mysql/processes", "mysql/handoff", "postgres/onelock", "postgres/processes", "postgres/handoff", "sqlite/onelock", "sqlite/processes", "sqlite/handoff"},
	},
}
