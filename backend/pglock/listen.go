package pglock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"database/sql/driver"

	"github.com/distlock/distlock/internal/sqlrow"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// errUnused ends a hearing that nobody needs.
var errUnused = errors.New("nobody waits")

const (
	// patience bounds what a bell asks of the server, and poolPatience what of the pool:
	// who waits is not to wait for that.
	patience     = 5 * time.Second
	poolPatience = 2 * time.Second

	// calm is for how long the connection is listened to before it is looked at.
	calm = 5 * time.Second
)

// listen listens on a connection of the pool until that ends, or nobody needs it. A
// connection that has listened is closed and not given back.
func (b *releaseListener) listen(h *subscription) error {
	ctx, cancel := context.WithTimeout(b.life, poolPatience)
	conn, err := b.site.db.Conn(ctx)
	cancel()
	if err != nil {
		return fmt.Errorf("no connection to listen: %w", err)
	}
	defer conn.Close()
	why := errors.New("the pool's connections are not pgx's")
	conn.Raw(func(raw any) error {
		if c, ok := raw.(*stdlib.Conn); ok {
			why = b.listenOn(c.Conn(), h)
			closing, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			c.Conn().Close(closing)
		}
		return driver.ErrBadConn
	})
	return why
}

func (b *releaseListener) listenOn(pg *pgx.Conn, h *subscription) error {
	if err := b.ask(pg.PgConn(), b.sqlListen()); err != nil {
		return fmt.Errorf("LISTEN: %w", err)
	}
	close(h.ready)
	for {
		if err := b.attend(pg); err != nil {
			return err
		}
	}
}

// sqlListen also keeps the server from ending a session that is to be idle.
func (b *releaseListener) sqlListen() string {
	listen := "LISTEN " + b.channel
	if b.site.version >= 14_00_00 {
		listen = "SET idle_session_timeout = 0; " + listen
	}
	return listen
}

// attend tells what is notified for a while, and then makes sure that the connection is
// needed, and there still.
func (b *releaseListener) attend(pg *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(b.life, calm)
	defer cancel()
	for {
		n, err := pg.WaitForNotification(ctx)
		switch {
		case err == nil:
			b.tell(n)
		case ctx.Err() == nil || b.life.Err() != nil:
			return err
		case b.retire():
			return errUnused
		default:
			// The server's list of sessions shows what this one is for.
			return b.ask(pg.PgConn(), "-- LISTEN "+b.channel+" goes on")
		}
	}
}

// tell wakes whom a notification is about. A user's own handler may have swallowed it.
func (b *releaseListener) tell(n *pgconn.Notification) {
	if n == nil {
		b.rows.WakeAll()
	} else if k, ok := keyOf(n.Payload); ok {
		b.rows.Wake(k)
	}
}

// keyOf reads what the server's encode(k, 'hex') wrote; anybody may notify anything.
func keyOf(text string) (sqlrow.Key, bool) {
	k, err := hex.DecodeString(text)
	if err != nil || len(k) != len(sqlrow.Key{}) {
		return sqlrow.Key{}, false
	}
	return sqlrow.Key(k), true
}

func (b *releaseListener) ask(pg *pgconn.PgConn, query string) error {
	ctx, cancel := context.WithTimeout(b.life, patience)
	defer cancel()
	return pg.Exec(ctx, query).Close()
}
