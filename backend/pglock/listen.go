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
	// patience bounds what an ear asks of the pool and of the server.
	patience = 5 * time.Second

	// calm is for how long nothing need be heard before the connection is looked at.
	calm = 5 * time.Second
)

// listen listens on a connection of the pool until that ends, or nobody needs it. A
// connection that has listened is closed and not given back.
func (e *ear) listen(h *hearing) error {
	ctx, cancel := context.WithTimeout(e.life, patience)
	conn, err := e.site.db.Conn(ctx)
	cancel()
	if err != nil {
		return fmt.Errorf("no connection to listen: %w", err)
	}
	defer conn.Close()
	why := errors.New("the pool's connections are not pgx's")
	conn.Raw(func(raw any) error {
		if c, ok := raw.(*stdlib.Conn); ok {
			why = e.listenOn(c.Conn(), h)
			closing, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			c.Conn().Close(closing)
		}
		return driver.ErrBadConn
	})
	return why
}

func (e *ear) listenOn(pg *pgx.Conn, h *hearing) error {
	if err := e.ask(pg.PgConn(), e.sqlListen()); err != nil {
		return fmt.Errorf("LISTEN: %w", err)
	}
	close(h.ready)
	e.rows.WakeAll() // there may have been news that nobody heard
	for {
		if err := e.await(pg); err != nil {
			return err
		}
	}
}

// sqlListen also keeps the server from ending a session that is to be idle.
func (e *ear) sqlListen() string {
	listen := "LISTEN " + e.channel
	if e.site.version >= 14_00_00 {
		listen = "SET idle_session_timeout = 0; " + listen
	}
	return listen
}

// await waits for one notification and tells it, or makes sure that the connection is
// there still.
func (e *ear) await(pg *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(e.life, calm)
	defer cancel()
	n, err := pg.WaitForNotification(ctx)
	switch {
	case err == nil:
		e.tell(n)
		return nil
	case ctx.Err() == nil || e.life.Err() != nil:
		return err
	case e.retire():
		return errUnused
	}
	return e.ask(pg.PgConn(), "-- is anybody there?")
}

// tell wakes whom a notification is about. A user's own handler may have swallowed it.
func (e *ear) tell(n *pgconn.Notification) {
	var k sqlrow.Key
	if n == nil {
		e.rows.WakeAll()
	} else if m, err := hex.Decode(k[:], []byte(n.Payload)); err == nil && m == len(k) {
		e.rows.Wake(k)
	}
}

func (e *ear) ask(pg *pgconn.PgConn, query string) error {
	ctx, cancel := context.WithTimeout(e.life, patience)
	defer cancel()
	return pg.Exec(ctx, query).Close()
}
