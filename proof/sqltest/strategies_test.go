package sqltest

import (
	"testing"
)

// strategy is one way to keep locks in one kind of database, and its documented properties.
type strategy struct {
	name  string
	kind  *kind
	query string // of the URL

	// leased means that a hold is a row, which outlives its connections and, until the TTL
	// ends, its process. Otherwise a hold ends with its connection, and so does a wait.
	leased bool

	// waiting is how many connections a backend has at most while it waits for one lock.
	waiting int

	// pools are the tested limits of pools. The first is the smallest sufficient one.
	pools []int

	// table has the numbers of the locks that live on connections.
	table string

	// clean means that even the server's log has no deadlock and no duplicate key.
	clean bool
}

var strategies = []strategy{
	{name: "mysql row", kind: mariaDB, query: "strategy=row", leased: true, waiting: 5, pools: []int{1, 4}, clean: true},
	{name: "postgres row", kind: postgreSQL, query: "strategy=row", leased: true, waiting: 3, pools: []int{1, 3}, clean: true},
	{name: "mysql forupdate", kind: mariaDB, query: "strategy=forupdate", table: "distlock_mutexes", waiting: 5, pools: []int{3}},
	{name: "mysql session", kind: mariaDB, query: "strategy=session", table: "distlock_sessions", waiting: 5, pools: []int{3}},
	{name: "postgres advisory", kind: postgreSQL, query: "strategy=advisory", table: "distlock_fences", waiting: 5, pools: []int{3}},
}

// each runs a test with every strategy, in parallel where the test allows it.
func each(t *testing.T, f func(t *testing.T, s strategy)) {
	for _, s := range strategies {
		t.Run(s.name, func(t *testing.T) { f(t, s) })
	}
}
