package redisconn

import (
	"os"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }
