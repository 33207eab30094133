package pglock

import (
	"database/sql"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/jackc/pgx/v5/stdlib"
)

// A pooler that the URL does not declare is noticed, in whatever mode it is.
func TestPoolersMustBeDeclared(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	plain := pg.Database(t)
	url := with(t, plain, "create", "true")
	for mode, pooler := range map[string]Pooler{"transaction": TransactionPooler, "statement": TransactionPooler, "session": SessionPooler} {
		via := testserver.PgBouncer(t, pg, testserver.PgBouncerOptions{Mode: mode}).Via(url)
		for _, strategy := range []Strategy{Row, Advisory} {
			refused(t, with(t, via, "strategy", string(strategy)), "pooler=session", "pooler=transaction")
		}
		everything(t, open(t, with(t, via, "pooler", string(pooler))))
		if pooler == SessionPooler {
			open(t, with(t, via, "pooler", string(pooler), "strategy", "advisory"))
		}
	}
	refused(t, with(t, url, "pooler", "transaction", "strategy", "advisory"), "such a pooler", "strategy row")
	refused(t, with(t, url, "pooler", "yes"), "want session or transaction")
}

// With another driver than pgx no pooler is noticed, so advisory locks need the user's word.
func TestAdvisoryWithAnotherDriverNeedsAWordOfPoolers(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(plainConnector{stdlib.GetConnector(*mustConfig(t, testserver.SharedPostgres(t).Database(t)))})
	defer db.Close()
	_, err := New(t.Context(), db, &Options{Strategy: Advisory, Create: true})
	wantRefusal(t, err, "pooler=session")
}
