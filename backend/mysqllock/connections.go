package mysqllock

import (
	"context"
)

// FreeConnections returns how many more connections the server would take from the
// backend's user: what its own limit and that of the user leave now. One for administrators
// beyond the limit does not count. A proxy in between may take fewer.
func (b *Backend) FreeConnections(ctx context.Context) (int, error) {
	db := b.site.db
	var limit, ofUser, used int
	err := db.QueryRowContext(ctx, "SELECT @@max_connections, @@max_user_connections").Scan(&limit, &ofUser)
	if err != nil {
		return 0, openError(b.site, err)
	}
	var name string
	if err := db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'").Scan(&name, &used); err != nil {
		return 0, openError(b.site, err)
	}
	free := limit - used
	if ofUser > 0 {
		query := "SELECT COUNT(*) FROM information_schema.processlist WHERE user = SUBSTRING_INDEX(USER(), '@', 1)"
		if err := db.QueryRowContext(ctx, query).Scan(&used); err != nil {
			return 0, openError(b.site, err)
		}
		free = min(free, ofUser-used)
	}
	return max(free, 0), nil
}
