package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock/backend/mysqllock"
	"github.com/distlock/distlock/backend/pglock"
)

const schemaHelp = `Schema prints the statements that create distlock's tables, for a database whose users
may not create tables. They skip existing tables, so you can run them again.

--strategy and --table correspond to the parameters strategy and table of a URL.
Exit codes: 0, and 64 for wrong usage.`

func (a *app) schemaCommand() *cobra.Command {
	var strategy, table string
	cmd := &cobra.Command{
		Use:   "schema mysql|postgres",
		Short: "Print the SQL that creates distlock's tables",
		Long:  schemaHelp,
		Example: `  distlock schema mysql | mysql -h db1 -u admin -p app
  distlock schema postgres | psql postgres://admin@db1/app
  distlock schema mysql --strategy unique --table app_locks`,
		ValidArgs: []string{"mysql", "postgres"},
		Args:      exactly(1, "mysql or postgres"),
		RunE:      func(_ *cobra.Command, args []string) error { return a.schema(args[0], strategy, table) },
	}
	f := cmd.Flags()
	f.StringVar(&strategy, "strategy", "row", "strategy of the locks: for mysql "+listed(mysqllock.Strategies())+"; for postgres "+listed(postgresStrategies))
	f.StringVar(&table, "table", "", "name of the table, with or without its schema (default: the backend's own)")
	return cmd
}

var postgresStrategies = []pglock.Strategy{pglock.Row, pglock.Advisory}

// listed joins words for a sentence.
func listed[S ~string](words []S) string {
	var list []string
	for _, w := range words {
		list = append(list, string(w))
	}
	return strings.Join(list, ", ")
}

func (a *app) schema(database, strategy, table string) error {
	var text, strategies string
	switch database {
	case "mysql":
		strategies = listed(mysqllock.Strategies())
		text = mysqllock.Schema(mysqllock.Options{Strategy: mysqllock.Strategy(strategy), Table: table})
	case "postgres":
		strategies = listed(postgresStrategies)
		text = pglock.Schema(pglock.Options{Strategy: pglock.Strategy(strategy), Table: table})
	default:
		return usage("schema: unknown database %q; want mysql or postgres", database)
	}
	switch {
	case !slices.Contains(strings.Split(strategies, ", "), strategy):
		return usage("schema: --strategy %s: want one of %s", quoted(strategy), strategies)
	case text == "":
		return usage("schema: --table %s: want letters, digits and underscores, such as locks or app.locks", quoted(table))
	}
	a.printf("%s\n", strings.TrimSpace(text))
	return nil
}
