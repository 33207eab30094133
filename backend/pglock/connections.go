package pglock

import "context"

// sqlFree takes a superuser for any other user: the connections that are reserved for
// administrators are not counted. A session of another user shows its database and its user
// only, which no process but a client's has both of, parallel workers aside.
const sqlFree = `SELECT least(
	current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
		- coalesce(current_setting('reserved_connections', true)::int, 0) - count(*),
	(SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = session_user) - count(*) FILTER (WHERE usename = session_user),
	(SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()) - count(*) FILTER (WHERE datname = current_database()))
	FROM pg_stat_activity WHERE datid IS NOT NULL AND usesysid IS NOT NULL`

// FreeConnections returns how many more connections the server would take from the
// backend's user: what its own limit and those of the user and the database leave now.
// Connections that are reserved for administrators do not count. A pooler in between may
// take fewer.
func (b *Backend) FreeConnections(ctx context.Context) (free int, err error) {
	err = b.database.queryRow(ctx, sqlFree).Scan(&free)
	return max(free, 0), explain(err)
}
