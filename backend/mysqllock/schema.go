package mysqllock

import "strings"

// Schema is the DDL of the tables that a strategy needs, as statements that each end with a
// semicolon, with comments. It is what Create runs. Options that are wrong make it empty.
func Schema(o Options) string {
	c, err := (&o).complete()
	if err != nil {
		return ""
	}
	return strings.Join(ddl(c), "\n")
}

// ddl are the statements that make a strategy's tables; o is complete.
func ddl(o Options) []string {
	switch o.Strategy {
	case UniqueIndex:
		return uniqueDDL(o)
	case Version:
		return versionDDL(o)
	case ForUpdate:
		return forUpdateDDL(o)
	case Session:
		return sessionDDL(o)
	}
	return rowDDL(o)
}
