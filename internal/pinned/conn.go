package pinned

import (
	"database/sql"
	"database/sql/driver"
)

// Discard closes a connection instead of giving it back to its pool: it is not as the pool
// made it.
func Discard(conn *sql.Conn) {
	conn.Raw(func(raw any) error {
		if c, ok := raw.(driver.Conn); ok {
			c.Close()
		}
		return driver.ErrBadConn
	})
	conn.Close()
}
