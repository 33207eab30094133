// Package redisson proves that distlock and Redisson share locks: Go processes and
// JVMs with the real Redisson take turns on every kind of them, in one real Redis.
package redisson

import (
	"os"
	"testing"

	"github.com/distlock/distlock/internal/testserver"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		untilKilled(url)
	}
	os.Exit(testserver.Run(m))
}
