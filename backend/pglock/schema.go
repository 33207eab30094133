package pglock

import (
	"fmt"
	"strings"
)

// Schema is the DDL of what a strategy keeps in the database, for whoever makes tables
// there; it may be run again and again. Options that make no sense have none.
func Schema(opts Options) string {
	o, err := opts.complete()
	if err != nil {
		return ""
	}
	if o.Strategy == Advisory {
		return advisorySchema(o)
	}
	return rowSchema(o)
}

// relation is a table as a strategy wants it. The first column is its key.
type relation struct {
	table   string
	columns []column
	storage string // parameters of WITH, if any
}

// column is one of a relation. Kind is its type in the words of format_type, and more
// what its definition says beyond.
type column struct{ name, kind, more string }

// ddl makes the relation if it isn't there.
func (r *relation) ddl() string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE IF NOT EXISTS %s (\n", quote(r.table))
	for _, c := range r.columns {
		fmt.Fprintf(&b, "\t%-8s %s NOT NULL%s,\n", c.name, c.kind, c.more)
	}
	fmt.Fprintf(&b, "\tPRIMARY KEY (%s)\n)", r.columns[0].name)
	if r.storage != "" {
		fmt.Fprintf(&b, " WITH (%s)", r.storage)
	}
	return b.String() + ";\n"
}
