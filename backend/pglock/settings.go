package pglock

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// settings are settings of a connection: pairs of a name and a value, both plain words.
type settings [][2]string

// call returns an expression that sets those that the server knows, if a condition is met.
func (s settings) call(condition string) string {
	values := make([]string, len(s))
	for i, one := range s {
		values[i] = fmt.Sprintf("('%s', '%s')", one[0], one[1])
	}
	return `(SELECT count(set_config(n, v, false)) FROM (VALUES ` + strings.Join(values, ", ") + `) s(n, v)
	WHERE current_setting(n, true) IS NOT NULL` + condition + `)`
}

// common are the settings of all connections. Locks are written, and whoever waits has a timeout of its own.
var common = settings{
	{"client_encoding", "UTF8"}, // as pgx sends texts
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"idle_session_timeout", "0"},
	{"transaction_timeout", "0"},
}

// own are the settings of connections that run no work of the caller's. To compile a statement takes longer than to run it.
var own = settings{{"statement_timeout", "0"}, {"jit", "off"}}

// poolSettings are the settings of the connections that a URL makes.
func poolSettings(opts *Options) settings {
	s := append(settings{}, common...)
	if opts.Strategy == Row { // for a locked table, then for a row; and each statement finds its row by the key, whatever the values are
		s = append(s, own[0], own[1], [2]string{"lock_timeout", "1000"},
			[2]string{"plan_cache_mode", "force_generic_plan"})
	}
	return s
}

// lockSettings are the settings of a connection with a lock, which can't be renewed while a statement waits for a locked row or
// table.
func lockSettings(lease time.Duration) settings {
	return slices.Concat(common, own, settings{{"lock_timeout", "1000"}}, leaseSettings(lease))
}

// leaseSettings let the server end a connection that is silent. They round up to whole ms.
func leaseSettings(lease time.Duration) settings {
	ms := fmt.Sprint((lease + time.Millisecond - 1).Milliseconds())
	return settings{{"idle_in_transaction_session_timeout", ms}, {"idle_session_timeout", ms}}
}
