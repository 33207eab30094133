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

// tableSpec is a table as a strategy wants it. The first column is its key.
type tableSpec struct {
	table   string
	columns []columnSpec
	storage string // parameters of WITH, if any
}

// columnSpec is one of a relation. Kind is its type in the words of format_type.
type columnSpec struct {
	name, kind string
	null       bool   // it may be NULL
	extra      string // of its definition, such as a default
	note       string // for whoever reads the DDL
}

// ddl makes the relation if it isn't there.
func (r *tableSpec) ddl() string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE IF NOT EXISTS %s (\n", quote(r.table))
	for _, c := range r.columns {
		b.WriteString("\t" + c.ddl())
	}
	fmt.Fprintf(&b, "\tPRIMARY KEY (%s)\n)", r.columns[0].name)
	if r.storage != "" {
		fmt.Fprintf(&b, " WITH (%s)", r.storage)
	}
	return b.String() + ";\n"
}

func (c *columnSpec) ddl() string {
	def := fmt.Sprintf("%-8s%s", c.name, c.kind)
	if !c.null {
		def += " NOT NULL"
	}
	def += c.extra + ","
	if c.note != "" {
		def = fmt.Sprintf("%-27s-- %s", def, c.note)
	}
	return def + "\n"
}
