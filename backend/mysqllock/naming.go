package mysqllock

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/distlock/distlock/driver"
)

// nameLength is that of the columns for names in tables of our own: all that fits an
// index of InnoDB, with room for a second column.
const nameLength = 2048

// naming is which names a column can hold, each as itself.
type naming struct {
	limit  int  // in bytes, or in characters
	text   bool // the limit is in characters
	padded bool // spaces at the end don't count
}

// newNaming refuses a column in which two names could be equal, or one could become
// another.
func newNaming(f found, charset string) (naming, error) {
	n := naming{limit: f.length, text: f.collation != ""}
	if !n.text {
		return n, nil
	}
	fix := fmt.Errorf("ALTER TABLE … MODIFY name VARBINARY(%d) NOT NULL makes names differ that differ", 4*f.length)
	switch c := strings.ToLower(f.collation); {
	case !strings.HasSuffix(c, "_bin"):
		return n, fmt.Errorf("column name has collation %s, in which names such as job and JOB can be equal: %w", f.collation, fix)
	case !strings.HasPrefix(c, "utf8mb4_"):
		return n, fmt.Errorf("column name has collation %s, whose character set lacks most characters: %w", f.collation, fix)
	case charset != "utf8mb4":
		return n, fmt.Errorf("column name is text, and the pool's sessions have character set %s: set charset=utf8mb4 in the DSN, or: %w", charset, fix)
	default:
		n.padded = !strings.Contains(c, "nopad") && c != "utf8mb4_0900_bin"
	}
	return n, nil
}

// check refuses names that the column can't hold.
func (n naming) check(name string) error {
	length, unit := len(name), "bytes"
	if n.text {
		length, unit = utf8.RuneCountInString(name), "characters"
	}
	switch {
	case length > n.limit:
		return fmt.Errorf("%w: the name has %d %s, the table's column has room for %d", driver.ErrInvalid, length, unit, n.limit)
	case n.padded && strings.HasSuffix(name, " "):
		return fmt.Errorf("%w: the name ends with a space, which the table's column does not tell from none: want VARBINARY", driver.ErrInvalid)
	}
	return nil
}
