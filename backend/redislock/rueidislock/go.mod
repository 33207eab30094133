module github.com/distlock/distlock/backend/redislock/rueidislock

go 1.24.0

require (
	github.com/distlock/distlock v0.0.0
	github.com/distlock/distlock/backend/redislock v0.0.0
	github.com/redis/go-redis/v9 v9.22.0
	github.com/redis/rueidis v1.0.60
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.31.0 // indirect
)
