// Package sqlname checks and quotes names that become a part of SQL statements.
package sqlname

import "strings"

// Valid reports whether a name consists of ASCII letters, digits and underscores, and does not start with a
// digit. Such a name needs no escaping in any database.
func Valid(name string) bool {
	for i, c := range name {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		digit := c >= '0' && c <= '9'
		if !letter && (!digit || i == 0) {
			return false
		}
	}
	return name != ""
}

// Quote quotes a name whose parts, between dots, are valid: in MySQL's notation, or in that of the SQL standard.
func Quote(name string, mysql bool) string {
	mark := `"`
	if mysql {
		mark = "`"
	}
	return mark + strings.ReplaceAll(name, ".", mark+"."+mark) + mark
}
