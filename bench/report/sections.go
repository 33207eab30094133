package report

const allTables = `# All results

<!-- "make bench" writes this file from bench/results.json and the text in bench/report, and "make performance" without measuring. -->

[Performance](../docs/performance.md) is taken from these tables, and [README.md](README.md) says how each scenario works. Figures of different tables do not compare.
`

// section is a chapter of the document.
type section struct {
	title, text string
	families    []string // whose tables follow
}

var sections = []section{
	{
		title: "Waiters in other processes",
		text:  "Each waiter is a client of its own, and each holder keeps the lock for a millisecond. A round takes at least 10 ms for each client, and 100 ms where it is not on Redis. On databases each client has a pool of its own, and *commands* are statements. *Fewest* and *most turns* are those of one client: where the fewest are 0 a client got nothing, and peers that poll need few commands since most of their clients sleep.",
		families: []string{"redis/remote", "etcd/remote", "zookeeper/remote", "postgres/remote", "mysql/remote", "sqlite/remote",
			"redis/readwrite", "etcd/readwrite", "zookeeper/readwrite", "postgres/readwrite", "mysql/readwrite", "sqlite/readwrite"},
	},
	{
		title:    "Waiters in one process",
		text:     "They are one contender to the server, and pass the lock to each other.",
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
		title:    "Many names and many leases on Redis",
		text:     "*Others* are callers who lock and unlock other names through the same client.",
		families: []string{"redis/names", "redis/held", "redis/leases"},
	},
	{
		title:    "Through a server",
		text:     "One `distlock serve` in a process of its own, with its usual log, before a Redis on the same machine. *Server* figures are of both. A watch or a page is one HTTP connection. *raw HTTP* is two requests that lock nothing, one a call; acquires and releases that come close together share a connection and cost less. The processors are the limit: Go programs that can reach the backend do better without a server.",
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
