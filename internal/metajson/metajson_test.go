package metajson_test

import (
	"encoding/json"
	"testing"

	"github.com/distlock/distlock/internal/metajson"
	"github.com/distlock/distlock/internal/testkit/expect"
)

func TestEncode(t *testing.T) {
	var c metajson.Cache
	meta := map[string]string{"program": "shop", "pid": "7"}
	for range 2 {
		for _, m := range []map[string]string{meta, {"pid": "7"}, nil, {"a \"b\"": "<\xff>"}} {
			want := ""
			if len(m) > 0 {
				text, _ := json.Marshal(m)
				want = string(text)
			}
			expect.Equal(t, c.Encode(m), want, m)
		}
	}
	c.Encode(meta)
	expect.Equal(t, testing.AllocsPerRun(100, func() { c.Encode(meta) }), 0, "allocations for metadata that is known")
	meta["pid"] = "8"
	if got := c.Encode(meta); got != `{"pid":"8","program":"shop"}` {
		t.Errorf("after a change: %s", got)
	}
}

var meta = map[string]string{"program": "shop", "pid": "712", "host": "web1", "user": "www"}

func BenchmarkEncode(b *testing.B) {
	b.Run("cached", func(b *testing.B) {
		var c metajson.Cache
		for b.Loop() {
			c.Encode(meta)
		}
	})
	b.Run("json", func(b *testing.B) {
		for b.Loop() {
			json.Marshal(meta)
		}
	})
}
