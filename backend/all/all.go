// Package all registers every URL scheme with distlock.Open:
//
//	import _ "github.com/distlock/distlock/backend/all"
//
// A program that uses one coordinator imports only that backend, and links no more
// than it needs.
package all

import (
	_ "github.com/distlock/distlock/backend/etcdlock"
	_ "github.com/distlock/distlock/backend/httplock"
	_ "github.com/distlock/distlock/backend/kubelock"
	_ "github.com/distlock/distlock/backend/memlock"
	_ "github.com/distlock/distlock/backend/mysqllock"
	_ "github.com/distlock/distlock/backend/pglock"
	_ "github.com/distlock/distlock/backend/quorum"
	_ "github.com/distlock/distlock/backend/redislock"
	_ "github.com/distlock/distlock/backend/s3lock"
	_ "github.com/distlock/distlock/backend/shard"
	_ "github.com/distlock/distlock/backend/sqlitelock"
	_ "github.com/distlock/distlock/backend/zklock"
)
