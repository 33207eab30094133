module github.com/distlock/distlock/backend/mysqllock

go 1.23.0

require (
	github.com/distlock/distlock v0.0.0
	github.com/go-sql-driver/mysql v1.8.1
)

require filippo.io/edwards25519 v1.1.0 // indirect
