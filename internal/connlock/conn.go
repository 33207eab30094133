package connlock

import (
	"database/sql"
	"database/sql/driver"
)

// Discard closes a connection instead of giving it back to its pool: it is not as the pool
// made it. No transaction may be open.
func Discard(conn *sql.Conn) {
	conn.Raw(func(raw any) error {
		hangUp(raw)
		return driver.ErrBadConn
	})
	conn.Close()
}

// hangUp closes a connection as its driver has it: what is sent after that fails at once.
func hangUp(raw any) error {
	if c, ok := raw.(driver.Conn); ok {
		c.Close()
	}
	return nil
}
