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

	// calm is for how long nothing need be heard before the connection is looked at.
	calm = 5 * time.Second
)

// listen listens on a connection of the pool until that ends, or nobody needs it. A
// connection that has listened is closed and not given back.
func (b *bell) listen(h *hearing) error {
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

func (b *bell) listenOn(pg *pgx.Conn, h *hearing) error {
	if err := b.ask(pg.PgConn(), b.sqlListen()); err != nil {
		return fmt.Errorf("LISTEN: %w", err)
	}
	close(h.ready)
	for {
		if err := b.await(pg); err != nil {
			return err
		}
	}
}

// sqlListen also keeps the server from ending a session that is to be idle.
func (b *bell) sqlListen() string {
	listen := "LISTEN " + b.channel
	if b.site.version >= 14_00_00 {
		listen = "SET idle_session_timeout = 0; " + listen
	}
	return listen
}

// await waits for one notification and tells it, or makes sure that the connection is
// there still.
func (b *bell) await(pg *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(b.life, calm)
	defer cancel()
	n, err := pg.WaitForNotification(ctx)
	switch {
	case err == nil:
		b.tell(n)
		return nil
	case ctx.Err() == nil || b.life.Err() != nil:
		return err
	case b.retire():
		return errUnused
	}
	return b.ask(pg.PgConn(), "-- is anybody there?")
}

// tell wakes whom a notification is about. A user's own handler may have swallowed it.
func (b *bell) tell(n *pgconn.Notification) {
	var k sqlrow.Key
	if n == nil {
		b.rows.WakeAll()
	} else if m, err := hex.Decode(k[:], []byte(n.Payload)); err == nil && m == len(k) {
		b.rows.Wake(k)
	}
}

func (b *bell) ask(pg *pgconn.PgConn, query string) error {
	ctx, cancel := context.WithTimeout(b.life, patience)
	defer cancel()
	return pg.Exec(ctx, query).Close()
}
