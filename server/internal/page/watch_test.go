package page

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// A thousand viewers of a hundred locks, each of which is renewed every three seconds, get at most 2 kB a second each, and
// all of them the same bytes, which are made once. All that the page shows is there afterwards.
func TestChangesAreSmall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := memlock.New()
		var holds []driver.Hold
		for i := range 100 {
			h := driver.Hold{Name: fmt.Sprintf("orders/%03d", i), Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 9 * time.Second}
			must.Get(b.Acquire(t.Context(), driver.Request{Hold: h, Fences: 1, Meta: map[string]string{"program": "orders", "pid": "123", "host": "host-1"}}))(t)
			holds = append(holds, h)
		}
		p, who := pageOf(b), viewerOf(true)
		who.Rights = "all"
		watches := make([]*Watch, 1000)
		var whole []byte
		for i := range watches {
			watches[i] = p.Watch(Query{Page: "locks"})
			defer watches[i].Close()
			<-watches[i].Fresh
			if text := watches[i].Changes(t.Context(), who, 0); i == 0 {
				whole = text
			} else if &text[0] != &whole[0] {
				t.Fatal("a page that was opened at the same time got a text of its own")
			}
		}
		const rounds = 30
		bytes, ends := 0, map[string]bool{}
		for i := range rounds {
			for k, h := range holds {
				if (i+k)%3 == 0 {
					must.OK(t, b.Renew(t.Context(), []driver.Hold{h})[0])
				}
			}
			var first []byte
			for k, w := range watches {
				<-w.Fresh
				text := w.Changes(t.Context(), who, 0)
				if bytes += len(text); k == 0 {
					first = text
				} else if len(text) > 0 && &text[0] != &first[0] {
					t.Fatal("made again for another viewer")
				}
			}
			var c change
			if first != nil {
				must.OK(t, json.Unmarshal(first, &c))
			}
			for _, g := range c.Groups {
				for id, e := range g.Ends {
					ends[id] = true
					if len(e) != 2 || e[0] < 6000 || e[0] > 9000 || e[1] < 7000 || e[1] > 9000 {
						t.Errorf("%v", e)
					}
				}
			}
		}
		if perSecond := bytes / rounds / len(watches); perSecond > 2000 || perSecond == 0 {
			t.Errorf("%d bytes a second for each viewer", perSecond)
		}
		expect.Equal(t, len(ends), 100, "locks whose renewals were sent")
	})
}

// Viewers with other rights, or of another page, get what is theirs.
func TestChangesAreOfOneViewer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := memlock.New()
		take(t, b, "a", driver.Exclusive, 0, nil)
		take(t, b, "b", driver.Exclusive, 0, nil)
		p := pageOf(b)
		sees := func(name string) Viewer {
			who := viewerOf(true)
			who.See, who.Rights = func(n string) bool { return n == name || name == "" }, "sees "+name
			return who
		}
		for _, c := range []struct {
			query Query
			who   Viewer
			lang  int
			want  string
		}{
			{Query{Page: "locks"}, sees(""), 0, "true true exclusive"}, {Query{Page: "locks"}, sees("a"), 0, "true false exclusive"},
			{Query{Page: "locks"}, sees("b"), 0, "false true exclusive"}, {Query{Page: "locks", Prefix: "a"}, sees(""), 0, "true false exclusive"},
			{Query{Page: "locks"}, sees(""), 1, "true true 互斥"},
		} {
			for range 2 {
				w := p.Watch(c.query)
				<-w.Fresh
				text := string(w.Changes(t.Context(), c.who, c.lang))
				w.Close()
				has := func(name string) bool { return strings.Contains(text, "name="+name) }
				got := fmt.Sprint(has("a"), has("b"))
				if words := strings.Fields(c.want); got != words[0]+" "+words[1] || !strings.Contains(text, words[2]) {
					t.Errorf("%+v: %s; want %s", c.query, got, c.want)
				}
			}
		}
	})
}

// A page that is opened long after a round gets a text of its own, with the time by which its clocks are set.
func TestFirstTextHasTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := contentOf([]group{{"rows", []piece{{ID: "x"}}}})
		first := c.all()
		if again := c.all(); &again[0] != &first[0] {
			t.Error("the text is not shared")
		}
		time.Sleep(10 * time.Second)
		var e change
		if err := json.Unmarshal(c.all(), &e); err != nil || e.Now != time.Now().UnixMilli() {
			t.Errorf("the text is of %d, at %d: %v", e.Now, time.Now().UnixMilli(), err)
		}
	})
}
