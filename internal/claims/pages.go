package claims

import (
	"database/sql"
	"strings"
)

// ListPage is how many names List reads at a time, so that no reader keeps old versions of
// rows alive while a caller looks at names.
const ListPage = 512

// Pages yields the names with the prefix, in their order, until yield returns false. page
// reads the next ListPage names after one, from the prefix on.
func Pages(prefix string, page func(after string) ([]string, error), yield func(name string) bool) error {
	for after := ""; ; {
		names, err := page(after)
		if err != nil {
			return err
		}
		for _, name := range names {
			if !strings.HasPrefix(name, prefix) || !yield(name) {
				return nil
			}
		}
		if len(names) < ListPage {
			return nil
		}
		after = names[len(names)-1]
	}
}

// ScanNames reads rows of one column, and closes them.
func ScanNames(rows *sql.Rows) ([]string, error) {
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
