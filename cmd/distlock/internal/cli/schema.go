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

// schemaOptions are the flags of schema.
type schemaOptions struct {
	strategy string
	table    string
}

func (a *app) schemaCommand() *cobra.Command {
	o := &schemaOptions{}
	cmd := &cobra.Command{
		Use:   "schema mysql|postgres",
		Short: "Print the SQL that creates distlock's tables",
		Long:  schemaHelp,
		Example: `  distlock schema mysql | mysql -h db1 -u admin -p app
  distlock schema postgres | psql postgres://admin@db1/app
  distlock schema mysql --strategy unique --table app_locks`,
		ValidArgs: []string{"mysql", "postgres"},
		Args:      exactly(1, "mysql or postgres"),
		RunE:      func(_ *cobra.Command, args []string) error { return a.schema(args[0], o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.strategy, "strategy", "row", "strategy of the locks: for mysql "+listed(mysqllock.Strategies())+"; for postgres "+listed(postgresStrategies))
	f.StringVar(&o.table, "table", "", "name of the table, with or without its schema (default: the backend's own)")
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

func (a *app) schema(database string, o *schemaOptions) error {
	var text string
	switch database {
	case "mysql":
		if err := among(o.strategy, mysqllock.Strategies()); err != nil {
			return err
		}
		text = mysqllock.Schema(mysqllock.Options{Strategy: mysqllock.Strategy(o.strategy), Table: o.table})
	case "postgres":
		if err := among(o.strategy, postgresStrategies); err != nil {
			return err
		}
		text = pglock.Schema(pglock.Options{Strategy: pglock.Strategy(o.strategy), Table: o.table})
	default:
		return usage("schema: unknown database %q; want mysql or postgres", database)
	}
	if text == "" {
		return usage("schema: --table %s: want letters, digits and underscores, such as locks or app.locks", quoted(o.table))
	}
	a.printf("%s\n", strings.TrimSpace(text))
	return nil
}

// among rejects a strategy that is not in all.
func among[S ~string](strategy string, all []S) error {
	if slices.Contains(all, S(strategy)) {
		return nil
	}
	return usage("schema: --strategy %s: want one of %s", quoted(strategy), listed(all))
}
