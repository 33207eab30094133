package pglock

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/distlock/distlock/internal/sqlrow"
)

// rowDialect is strategy Row in PostgreSQL's words.
type rowDialect struct {
	*database
	sql *rowStatements
}

func newRowDialect(s *database, channel string) *rowDialect {
	return &rowDialect{database: s, sql: newRowStatements(s.opts.Table, channel)}
}

func (d *rowDialect) Take(ctx context.Context, t sqlrow.TakeRequest) (number int64, err error) {
	key := sqlrow.KeyOf(t.Name)
	_, err = d.one(ctx, d.sql.take, []any{&number}, key[:], t.Owner, int64(t.Kind), t.TTL.Microseconds(),
		string(t.Meta), int64(sqlrow.MaxNumber))
	return number, err
}

func (d *rowDialect) Free(ctx context.Context, h sqlrow.HoldKey) (freed, waited bool, err error) {
	err = d.tell(true, func(tell bool) error {
		freed, err = d.one(ctx, d.sql.free, []any{&waited, new(any)}, h.Key[:], h.Owner, tell)
		return err
	})
	return freed, waited, err
}

func (d *rowDialect) Extend(ctx context.Context, holds []sqlrow.HoldKey, e sqlrow.Extension) (n int, until int64, err error) {
	keys, owners := make([]sqlrow.Key, len(holds)), make([]string, len(holds))
	for i, h := range holds {
		keys[i], owners[i] = h.Key, h.Owner
	}
	text := d.sql.extend
	if e.Wait {
		text = d.sql.await
	}
	err = d.again(ctx, func() error {
		rows, err := d.query(ctx, text, keyList(keys), textList(owners), e.Floor, e.TTL.Microseconds(), e.Shorten)
		if err != nil {
			return err
		}
		defer rows.Close()
		for n = 0; rows.Next(); n++ {
			if err := rows.Scan(&until); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return n, until, err
}

func (d *rowDialect) Look(ctx context.Context, keys []sqlrow.Key) (now int64, found []sqlrow.Row, err error) {
	err = d.again(ctx, func() error {
		rows, err := d.query(ctx, d.sql.look, keyList(keys))
		if err != nil {
			return err
		}
		defer rows.Close()
		for found = nil; rows.Next(); {
			var r sqlrow.Row
			var k sql.NullString
			var meta, claims []byte
			if err := rows.Scan(&now, &k, &r.Name, &r.Kind, &r.Limit, &r.Number, &r.Owner, &r.Granted, &r.Since, &r.Until, &meta, &claims, &r.Claimed, &r.Rev, &r.Waiting); err != nil {
				return err
			}
			var ok bool
			if r.Key, ok = keyOf(k.String); ok {
				r.Meta, r.Claims = orNil(meta), orNil(claims)
				found = append(found, r)
			}
		}
		return rows.Err()
	})
	if err == nil && now == 0 {
		err = errReplica
	}
	return now, found, err
}

func (d *rowDialect) Insert(ctx context.Context, r sqlrow.Row) (bool, error) {
	n, err := d.change(ctx, d.sql.insert, r.Key[:], r.Name, int64(r.Kind), int64(r.Limit), r.Number, r.Owner, r.Granted, r.Since, r.Until, string(r.Meta), string(r.Claims), r.Claimed, r.Waiting, r.Earliest, r.Latest)
	return n == 1, err
}

func (d *rowDialect) Swap(ctx context.Context, r sqlrow.Row, frees bool) (done, waited bool, err error) {
	err = d.tell(frees, func(tell bool) error {
		done, err = d.one(ctx, d.sql.swap, []any{&waited, new(any)}, r.Key[:], r.Rev, int64(r.Kind), int64(r.Limit), r.Number, r.Owner, r.Granted, r.Since, r.Until, string(r.Meta), string(r.Claims), r.Claimed, tell, r.Earliest, r.Latest)
		return err
	})
	return done, waited, err
}

// tell runs a statement that is to tell those who listen. If the server has no room for
// news it has given all of it up: then those who wait find out by looking.
func (d *rowDialect) tell(tell bool, statement func(tell bool) error) error {
	err := statement(tell)
	if tell && sqlState(err) == queueFull {
		return statement(false)
	}
	return err
}

func (d *rowDialect) Mark(ctx context.Context, k sqlrow.Key, span time.Duration) error {
	_, err := d.change(ctx, d.sql.mark, k[:], span.Microseconds())
	return err
}

func (d *rowDialect) Names(ctx context.Context, prefix, after string, limit int) (names []string, err error) {
	err = d.again(ctx, func() error {
		rows, err := d.query(ctx, d.sql.names, []byte(prefix), []byte(after), int64(limit))
		if err != nil {
			return err
		}
		defer rows.Close()
		for names = nil; rows.Next(); {
			var name string
			if err := rows.Scan(&name); err != nil {
				return err
			}
			names = append(names, name)
		}
		return rows.Err()
	})
	return names, err
}

// errReplica is for a statement that was answered by another server than those that write.
var errReplica = errors.New("a replica has answered, which may not know the last of what happened: the connections must be to the primary")

// one runs a statement that answers a row, or none: false.
func (d *rowDialect) one(ctx context.Context, query string, into []any, args ...any) (bool, error) {
	err := d.again(ctx, func() error { return d.queryRow(ctx, query, args...).Scan(into...) })
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// change runs a statement that changes rows, and counts them.
func (d *rowDialect) change(ctx context.Context, query string, args ...any) (int, error) {
	var n int64
	err := d.again(ctx, func() error {
		done, err := d.db.ExecContext(ctx, query, append(d.queryArgs(), args...)...)
		if err == nil {
			n, err = done.RowsAffected()
		}
		return err
	})
	return int(n), err
}

// tries bounds how often a statement is repeated that PostgreSQL has given up.
const tries = 20

// again runs a statement until it is not in conflict with others.
func (d *rowDialect) again(ctx context.Context, statement func() error) (err error) {
	for n := range tries {
		if err = statement(); !undone(err) {
			break
		}
		select { // others are at the same row
		case <-time.After(rand.N(time.Duration(n+1) * time.Millisecond)):
		case <-ctx.Done():
			return explainCall(err)
		}
	}
	return explainCall(err)
}

// undone says that PostgreSQL has given a statement up and undone it in whole, or, when it
// ended an idle session, has not begun it.
func undone(err error) bool {
	c := sqlState(err)
	return c == conflict || c == deadlock || c == idleTooLong
}

// orNil takes an empty value for none.
func orNil(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// keyList and textList are arrays as PostgreSQL writes them, which any driver can send.
func keyList(keys []sqlrow.Key) string {
	var b strings.Builder
	for i, k := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"\\x` + hex.EncodeToString(k[:]) + `"`)
	}
	return "{" + b.String() + "}"
}

var inList = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func textList(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = `"` + inList.Replace(text) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}
