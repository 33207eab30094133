package cli

import (
	"strings"
	"testing"
)

func TestSchema(t *testing.T) {
	for _, test := range []struct{ args, says string }{
		{"schema mysql", "CREATE TABLE IF NOT EXISTS `distlock_locks`"},
		{"schema mysql --table app.locks", "CREATE TABLE IF NOT EXISTS `app`.`locks`"},
		{"schema mysql --strategy forupdate", "CREATE TABLE IF NOT EXISTS `distlock_mutexes`"},
		{"schema mysql --strategy session", "CREATE TABLE IF NOT EXISTS `distlock_sessions`"},
		{"schema postgres", `CREATE TABLE IF NOT EXISTS "distlock_locks"`},
		{"schema postgres --table app.locks", `CREATE TABLE IF NOT EXISTS "app"."locks"`},
		{"schema postgres --strategy advisory", "CREATE "},
		{"schema --help", "distlock schema mysql|postgres [flags]"},
		{"help schema", "for mysql row, forupdate, session; for postgres row, advisory"},
	} {
		code, out, err := inProcess(strings.Fields(test.args)...)
		if code != 0 || !strings.Contains(out, test.says) || err != "" {
			t.Errorf("%s: got %d, %q, %q; want %q", test.args, code, out, err, test.says)
		}
	}
}
