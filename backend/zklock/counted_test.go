package zklock_test

import (
	"encoding/binary"
	"fmt"
	"hash/adler32"
	"os"
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// serverCountedTo starts a server on which a node exists whose next sequential child
// gets a number: one gets there by two thousand million locks, or by writing the
// server's log.
func serverCountedTo(tb testing.TB, path string, number int32) *testserver.ZooKeeperServer {
	tb.Helper()
	s := testserver.ZooKeeper(tb, testserver.ZooKeeperOptions{})
	s.Stop() // it has written an empty snapshot, upon which the log builds
	log := filepath.Join(s.Dir(), "data", "version-2", "log.1")
	if err := os.WriteFile(log, countedLog(path, number), 0o600); err != nil {
		tb.Fatal(err)
	}
	s.Start()
	return s
}

// Parts of ZooKeeper's log, which is big-endian.
const (
	logMagic     = "ZKLG"
	logVersion   = 2
	logEnd       = 'B' // of each record
	logCreate    = 1
	logDelete    = 2
	logEveryone  = "\x00\x00\x00\x01\x00\x00\x00\x1f\x00\x00\x00\x05world\x00\x00\x00\x06anyone"
	logNoData    = "\xff\xff\xff\xff"
	logPermanent = "\x00"
)

// countedLog makes a node and below it one that says how many there were, and deletes that.
func countedLog(path string, number int32) []byte {
	l := &serverLog{b: number64(number32([]byte(logMagic), logVersion), 0)}
	last := fmt.Sprintf("%s/%d", path, number)
	l.create(path, 1)
	l.create(last, number)
	l.add(logDelete, text(nil, last))
	return l.b
}

// serverLog is a transaction log, which ZooKeeper replays when it starts.
type serverLog struct {
	b    []byte
	zxid uint64
}

func (l *serverLog) create(path string, count int32) {
	body := append(text(nil, path), logNoData+logEveryone+logPermanent...)
	l.add(logCreate, number32(body, uint32(count)))
}

func (l *serverLog) add(kind uint32, body []byte) {
	l.zxid++
	txn := number32(number64(nil, 0), 0) // a request of no session
	txn = number64(number64(txn, l.zxid), 1)
	txn = append(number32(txn, kind), body...)
	l.b = number64(l.b, uint64(adler32.Checksum(txn)))
	l.b = append(number32(l.b, uint32(len(txn))), txn...)
	l.b = append(l.b, logEnd)
}

func number32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }

func number64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

func text(b []byte, s string) []byte { return append(number32(b, uint32(len(s))), s...) }
