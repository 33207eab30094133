package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
)

// sessions is the strategy Session: GET_LOCK on connections that many holds share.
type sessions struct{ connections }

func newSession(ctx context.Context, s *site) (strategy, error) {
	d := &sessions{connections{site: s, table: quoted(s.opts.Table)}}
	b, err := d.open(ctx, d, false)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// sessionDDL are the statements that make the strategy's tables.
func sessionDDL(o Options) []string {
	return pinnedDDL(o, "the numbers of grants; the locks are in the server's memory.")
}

// NewConn makes a link.
func (d *sessions) NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (connlock.Conn, error) {
	k, err := d.pin(ctx, conn, lease)
	if err == nil {
		err = k.exec(ctx, d.server.hasty())
	}
	return &sessionLink{k}, err
}

// hasty lets a session wait for no row or table, or as short as the server can: what others keep
// locked would keep all locks of the link from being renewed.
func (v server) hasty() string {
	seconds := "1"
	if v.mariaDB {
		seconds = "0"
	}
	return "SET SESSION innodb_lock_wait_timeout = " + seconds + ", lock_wait_timeout = " + seconds
}

// KillHolder ends the connection of a holder, and all its locks.
func (d *sessions) KillHolder(ctx context.Context, l connlock.Lock) (bool, error) {
	return d.evict(ctx, l, func(mark string) string {
		return "COALESCE(IS_USED_LOCK('" + l.Key + "') = " + marked(mark) + ", 0)"
	})
}

type sessionLink struct{ link }

// TryLock tries, and then writes the number.
func (k *sessionLink) TryLock(ctx context.Context, l connlock.Lock) (number uint64, ok bool, err error) {
	ok, err = yes(ctx, k.tx.Querier(), "SELECT GET_LOCK('"+l.Key+"', 0)")
	if err == nil && ok && !l.SeparateNumber {
		number, err = k.Number(ctx, l)
	}
	return number, ok && err == nil, err
}

// WaitLock: a statement that is killed answers as one whose time is over.
func (k *sessionLink) WaitLock(ctx context.Context, l connlock.Lock, slice time.Duration) (bool, error) {
	return yes(ctx, k.tx.Querier(), fmt.Sprintf("SELECT GET_LOCK('%s', %d)", l.Key, max(1, int(slice/time.Second))))
}

func (k *sessionLink) Number(ctx context.Context, l connlock.Lock) (uint64, error) {
	n, err := k.c.next(ctx, k.tx.Querier(), l, k.mark)
	if number(err) == errLockWait {
		return 0, nil
	}
	return n, err
}

// Undo gives back what the link has, if it has: the server says so without a warning.
func (k *sessionLink) Undo(ctx context.Context, l connlock.Lock) error {
	return k.exec(ctx, "DO RELEASE_LOCK('"+l.Key+"')")
}

func (k *sessionLink) Unlock(ctx context.Context, l connlock.Lock) error {
	var had sql.NullInt64 // NULL: nobody has it
	err := k.tx.Querier().QueryRowContext(ctx, "SELECT RELEASE_LOCK('"+l.Key+"')").Scan(&had)
	if err == nil && had.Int64 != 1 {
		err = fmt.Errorf("%w: the server does not know of the lock", driver.ErrLost)
	}
	return err
}

func (k *sessionLink) Tx() *sql.Tx { return nil }

func (k *sessionLink) Commit(context.Context) error { return driver.ErrUnsupported }

func (k *sessionLink) Close() { k.tx.Close() }
