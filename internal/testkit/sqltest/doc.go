// Package sqltest breaks what locks in a database depend on (connections, processes, the
// server, the network), and crowds it, the same for every strategy of mysqllock and pglock:
// who has the lock when, under which fence, and how many connections it takes. It has tests
// only.
package sqltest
