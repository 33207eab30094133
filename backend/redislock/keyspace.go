package redislock

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
)

// keyspace is how one backend hears of keys that end: on the channel that a server has
// for each key, if it was told to tell (notify-keyspace-events). Servers tell it only
// where the key is, and only in the classic way.
type keyspace struct {
	wanted   atomic.Bool
	database atomic.Pointer[string]
}

const keyspaceStart = "__keyspace@"

// channel is where the server tells what becomes of a key; empty if that is not wanted.
func (k *keyspace) channel(ctx context.Context, c client, key string) (string, error) {
	if !k.wanted.Load() {
		return "", nil
	}
	db := k.database.Load()
	if db == nil {
		var err error
		if db, err = databaseOf(ctx, c); err != nil {
			return "", fmt.Errorf("asking for the number of the database: %w", err)
		}
		k.database.Store(db)
	}
	return keyspaceStart + *db + "__:" + key, nil
}

// databaseOf asks the server, since not all clients tell. Who may not ask is taken to
// use the first one.
func databaseOf(ctx context.Context, c client) (*string, error) {
	first := "0"
	if c.strict() {
		return &first, nil
	}
	reply, err := c.do(ctx, "", []string{"CLIENT", "INFO"})
	if _, refused := asReply(err); err != nil && !refused {
		return nil, err
	}
	for _, word := range strings.Fields(text(reply)) {
		if n, ok := strings.CutPrefix(word, "db="); ok {
			return &n, nil
		}
	}
	return &first, nil
}

// giveUp reports whether err may mean that the server's user may not hear of keys. Then
// it is not asked for again: the rest may be allowed.
func (k *keyspace) giveUp(err error) bool {
	re, is := asReply(err)
	return is && re.is("NOPERM") && k.wanted.CompareAndSwap(true, false)
}

// keyEnds says how many the end of a lock's key lets in. Of several readers the others
// learn it from the TTL that they were told.
func keyEnds(event string) int {
	switch event {
	case "del", "expired", "evicted", "rename_from", "move_from":
		return 1
	}
	return 0
}
