package adapters_test

import (
	"context"
	"database/sql"
	"os"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/distlock/distlock"
	"github.com/distlock/distlock/adapters/certmagiclock"
	"github.com/distlock/distlock/adapters/gocronlock"
	"github.com/distlock/distlock/adapters/gooselock"
	"github.com/go-co-op/gocron/v2"
	"github.com/pressly/goose/v3"
)

// docs/adapters.md shows these.
var _ = []any{migrate, eachRunOnce, oneScheduler, certificates}

// Each process may call it when it starts: one migrates, and the others wait and find nothing to do.
func migrate(ctx context.Context, locks *distlock.Client, db *sql.DB) error {
	p, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"),
		goose.WithLocker(gooselock.New(locks.Mutex("shop:migrations"))))
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}

// Each run of a job is taken by one scheduler. The lock is held for ten seconds at least, so that a host whose clock is
// late does not run the job again.
func eachRunOnce(locks *distlock.Client) (gocron.Scheduler, error) {
	locker := gocronlock.NewLocker(locks, "cron:", distlock.MinHold(10*time.Second))
	return gocron.NewScheduler(gocron.WithDistributedLocker(locker))
}

// One scheduler runs all jobs, until it ends.
func oneScheduler(locks *distlock.Client) (gocron.Scheduler, *gocronlock.Elector, error) {
	elector := gocronlock.NewElector(locks.Election("leader:cron"))
	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	return s, elector, err // close the elector after the scheduler
}

// Certificates stay in the folder that all servers share; only the locks are distlock's.
func certificates(locks *distlock.Client) {
	certmagic.Default.Storage = certmagiclock.New(&certmagic.FileStorage{Path: "/srv/certs"}, locks, "caddy:")
}
