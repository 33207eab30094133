// Package sqltest breaks what database locks depend on (connections, processes, the server, the
// network) and crowds them, in the same way for every strategy of mysqllock and pglock. It checks who
// holds the lock when, with which fence, and how many connections that takes. It has tests only.
package sqltest
