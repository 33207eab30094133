package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/distlock/distlock/backend/mysqllock"
	"github.com/distlock/distlock/backend/pglock"
)

const schemaHelp = `Schema prints the statements that make the tables which distlock keeps locks in, for
a database whose users may not make tables themselves. They leave alone what exists,
and can be run again.

A strategy is what the parameter strategy of a URL says, row unless it says otherwise;
a table is what table says. Exit codes: 0, and 64 for a bad command line.`

// schemaOptions is what schema was asked for.
type schemaOptions struct {
	strategy string
	table    string
}

func (a *app) schemaCommand() *cobra.Command {
	o := &schemaOptions{}
	cmd := &cobra.Command{
		Use:   "schema mysql|postgres",
		Short: "Print the tables that a database needs",
		Long:  schemaHelp,
		Example: `  distlock schema mysql | mysql -h db1 -u admin -p app
  distlock schema postgres | psql postgres://admin@db1/app
  distlock schema mysql --strategy unique --table app_locks`,
		ValidArgs: []string{"mysql", "postgres"},
		Args:      exactly(1, "mysql or postgres"),
		RunE:      func(_ *cobra.Command, args []string) error { return a.schema(args[0], o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.strategy, "strategy", "row", "how locks are kept: for mysql "+listed(mysqllock.Strategies())+"; for postgres "+listed(postgresStrategies))
	f.StringVar(&o.table, "table", "", "name of the table, with or without that of its schema (default: as the backend has it)")
	return cmd
}

var postgresStrategies = []pglock.Strategy{pglock.Row, pglock.Advisory}

// listed are words in a sentence.
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

// among refuses a strategy that is none of these.
func among[S ~string](strategy string, all []S) error {
	if slices.Contains(all, S(strategy)) {
		return nil
	}
	return usage("schema: --strategy %s: want one of %s", quoted(strategy), listed(all))
}
