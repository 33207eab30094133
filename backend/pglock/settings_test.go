package pglock

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/connlock"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// hostileTimeouts are settings of a user that would break locks, each longer than the first statement of a connection takes on a
// busy machine: the connection has them until then.
var hostileTimeouts = []string{
	"statement_timeout", "lock_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout", "transaction_timeout",
}

// hostile are others.
var hostile = map[string]string{
	"default_transaction_isolation": "'serializable'", "default_transaction_read_only": "on", "client_encoding": "LATIN1",
	"search_path": "elsewhere", `"TimeZone"`: "'Asia/Kathmandu'", `"DateStyle"`: "'SQL, DMY'", "bytea_output": "'escape'",
}

// Whatever is set for the user after Open, connections that are opened later are as good as the first ones.
func TestLaterSettingsOfTheUser(t *testing.T) {
	t.Parallel()
	for kind, params := range kinds {
		for _, version := range []string{"15", "18"} {
			t.Run(kind+version, func(t *testing.T) {
				t.Parallel()
				pg := testserver.SharedPostgres(t)
				if version != "15" {
					pg = testserver.SharedPostgresVersion(t, version)
				}
				plain := pg.Database(t)
				admin := with(t, plain, append([]string{"create", "true"}, params...)...)
				table := open(t, admin).database.opts.Table
				user := pg.User(t, admin, "s3cret", "SELECT, INSERT, UPDATE ON "+table)
				b := open(t, user)
				db, name := pg.DB(t, plain), mustConfig(t, plainOf(t, user)).User
				settings, timeouts := maps.Clone(hostile), hostileTimeouts
				if version == "15" {
					timeouts = timeouts[:4]
				}
				for _, timeout := range timeouts {
					settings[timeout] = "'11s'"
				}
				for setting, value := range settings {
					must.Get(db.Exec(fmt.Sprintf("ALTER ROLE %s SET %s = %s", name, setting, value)))(t)
				}
				must.Get(db.Exec("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = '" + name + "'"))(t) // and wait
				r := request("Zoë's lock 漢字")
				r.Meta = map[string]string{"host": "Zoë 漢字"}
				eventually(t, "the lock is taken", func() bool {
					_, err := b.Acquire(t.Context(), r)
					return err == nil
				})
				conn := must.Get(b.database.db.Conn(t.Context()))(t)
				if kind == "advisory" {
					conn.Close()
					conn, _ = lockConnection(t, b)
				}
				defer conn.Close()
				for _, timeout := range timeouts {
					var is string
					must.OK(t, conn.QueryRowContext(t.Context(), "SHOW "+timeout).Scan(&is))
					if is == "11s" && (kind == "advisory" || timeout != "idle_in_transaction_session_timeout") { // rows have no open transaction
						t.Errorf("%s is the user's", timeout)
					}
				}
				for _, err := range b.Renew(t.Context(), []driver.Hold{r.Hold}) {
					if err != nil {
						t.Error(err)
					}
				}
				held(t, open(t, admin), request(r.Name))
				release(t, b, r)
			})
		}
	}
}

// What a client quotes in its names changes neither the locks that it means nor those that it waits for.
func TestQuotedIdentifiers(t *testing.T) {
	t.Parallel()
	for kind, params := range kinds {
		plain := with(t, testserver.SharedPostgres(t).Database(t), append([]string{"create", "true"}, params...)...)
		a, b := open(t, plain), open(t, with(t, plain, "quote_all_identifiers", "on"))
		if one, other := a.Caps().Name, b.Caps().Name; one != other {
			t.Errorf("%s: the store is %s and %s", kind, one, other)
		}
		r := request("x")
		take(t, a, r)
		held(t, b, request("x"))
	}
}

// Statements on our own connections are not compiled, which takes longer than to run them.
func TestNothingIsCompiled(t *testing.T) {
	t.Parallel()
	wantOff := func(q connlock.Querier) {
		var jit string
		must.OK(t, q.QueryRowContext(t.Context(), "SHOW jit").Scan(&jit))
		if jit != "off" {
			t.Errorf("jit is %s", jit)
		}
	}
	wantOff(open(t, fresh(t)).database.db)
	conn, _ := lockConnection(t, open(t, with(t, fresh(t), advisoryParams...)))
	wantOff(conn)
}

// While a synchronous standby is gone, an attempt waits alone: other locks of its connection are renewed.
func TestAttemptsBesideAStandbyThatIsGone(t *testing.T) {
	t.Parallel()
	pg := testserver.Postgres(t, testserver.PostgresOptions{})
	b := open(t, with(t, pg.Database(t), advisoryParams...))
	var holds []driver.Hold
	for i := range 8 {
		r := request(fmt.Sprint("lock", i))
		take(t, b, r)
		holds = append(holds, r.Hold)
	}
	pg.Exec(t, "SET synchronous_commit = local", "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
	eventually(t, "commits wait for the standby", func() bool {
		return pg.Ask(t, "SHOW synchronous_standby_names") == "nobody"
	})
	ctx, cancel := context.WithCancel(t.Context())
	attempts := make(chan error)
	for i := range 8 { // more than there are connections
		go func() {
			_, err := b.Acquire(ctx, request(fmt.Sprint("other", i)))
			attempts <- err
		}()
	}
	eventually(t, "an attempt waits for the standby", func() bool {
		return pg.Ask(t, "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'SyncRep'") != "0"
	})
	for i, err := range b.Renew(t.Context(), holds) {
		if err != nil {
			t.Errorf("lock%d: %v", i, err)
		}
	}
	cancel()
	for range 8 {
		if err := <-attempts; err == nil {
			t.Error("granted, though the number is not with the standby")
		}
	}
	pg.Exec(t, "SET synchronous_commit = local", "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
}

// A pooler in transaction mode hands connections on: none is set, not even by an Open that is refused.
func TestNoSettingsStayBehindAPooler(t *testing.T) {
	t.Parallel()
	pg := testserver.SharedPostgres(t)
	url := with(t, pg.Database(t), "create", "true")
	via := testserver.PgBouncer(t, pg, testserver.PgBouncerOptions{Mode: "transaction"}).Via(url)
	refused(t, via, "pooler=transaction")
	everything(t, open(t, with(t, via, "pooler", "transaction")))
	db := pg.DB(t, plainOf(t, with(t, via, "default_query_exec_mode", "exec")))
	for range 8 {
		var limit string
		if err := db.QueryRow("SHOW lock_timeout").Scan(&limit); err != nil || limit != "0" {
			t.Errorf("lock_timeout %s, %v", limit, err)
		}
	}
}

// plainOf returns a URL without distlock's own parameters.
func plainOf(t testing.TB, rawURL string) string {
	t.Helper()
	return mustConnector(t, rawURL, &Options{Pooler: TransactionPooler}).url
}
