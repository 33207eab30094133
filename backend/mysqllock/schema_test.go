package mysqllock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// What Schema prints can be run as it is, and again, and is all that a strategy needs.
func TestSchema(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedMariaDB(t)
	for _, s := range Strategies() {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			for _, table := range []string{"", "Own_Table"} {
				u := srv.Database(t)
				db := srv.DB(t, u)
				for range 2 {
					for text := range strings.SplitSeq(Schema(Options{Strategy: s, Table: table}), ";\n") {
						if strings.TrimSpace(text) != "" {
							do(t, db, text)
						}
					}
				}
				b := connect(t, fmt.Sprintf("%s?strategy=%s&table=%s", u, s, table))
				take(t, b, request("x", long))
			}
		})
	}
}

func TestSchemaOfNonsense(t *testing.T) {
	for _, o := range []Options{{Strategy: "best"}, {Table: "a-b"}} {
		if text := Schema(o); text != "" {
			t.Errorf("%+v: %s", o, text)
		}
	}
}
