package pglock

import "context"

// learn fills in what the server says of itself.
func (s *site) learn(ctx context.Context) error {
	return s.db.QueryRowContext(ctx, "SELECT current_setting('server_version_num')::int").Scan(&s.version)
}
