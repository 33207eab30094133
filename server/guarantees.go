package server

import "strings"

// guarantee is a backend's row of the table in docs/guarantees.md.
type guarantee struct{ Backend, Two, Back, Dead, Woken string }

// guarantees has the rows by the beginning of a backend's name, in each language.
var guarantees = []struct {
	starts string
	row    [len(languages)]guarantee
}{
	{"mem", [...]guarantee{
		{"memory (`mem:`)", "no", "no", "–", "the release"},
		{"内存（`mem:`）", "否", "否", "–", "释放"},
	}},
	{"sqlite:", [...]guarantee{
		{"SQLite", "no; elsewhere than on Linux if the clock jumps", "if the clock goes back after all data is lost", "the TTL", "the release"},
		{"SQLite", "否；非 Linux 系统上，时钟跳变时可能", "数据全部丢失且时钟倒退时", "TTL", "释放"},
	}},
	{"redis+sentinel", redisReplicated},
	{"redis+cluster", redisReplicated},
	{"rediss+sentinel", redisReplicated},
	{"rediss+cluster", redisReplicated},
	{"redis", redisAlone},
	{"quorum", [...]guarantee{
		{"Redlock", "if members forget their votes, or clocks jump", "if a member forgets and its clock is behind", "the TTL", "the release"},
		{"Redlock", "成员忘记投票或时钟跳变时", "某成员丢失数据且其时钟落后时", "TTL", "释放"},
	}},
	{"mysql", sqlRows},
	{"postgres", sqlRows},
}

var redisAlone = [...]guarantee{
	{"Redis, one server", "if it loses its memory, its clock jumps forward, or keys are evicted", "if it loses its memory and its clock goes back", "the TTL", "the release"},
	{"Redis，单机", "内存数据丢失、时钟向前跳变或键被淘汰时", "内存数据丢失且时钟倒退时", "TTL", "释放"},
}

var redisReplicated = [...]guarantee{
	{"Redis Sentinel, Cluster", redisAlone[0].Two + ", and after a failover", redisAlone[0].Back, "the TTL", "the release"},
	{"Redis Sentinel、Cluster", redisAlone[1].Two + "，以及故障转移之后", redisAlone[1].Back, "TTL", "释放"},
}

var sqlRows = [...]guarantee{
	{"MySQL, PostgreSQL: rows", "if commits are not flushed, after a failover that loses commits, or if the clock jumps forward", "with what loses commits, if the clock goes back", "the TTL", "the release (`row`), a poll"},
	{"MySQL、PostgreSQL：行策略", "提交未落盘、故障转移丢失提交或时钟向前跳变时", "提交丢失，同时时钟倒退时", "TTL", "释放（`row`）、轮询"},
}

// guaranteeOf returns the row of a backend; an empty one if the table has none.
func guaranteeOf(name string, lang int) guarantee {
	for _, g := range guarantees {
		if strings.HasPrefix(name, g.starts) {
			row := g.row[lang]
			for _, s := range []*string{&row.Backend, &row.Woken} {
				*s = strings.ReplaceAll(*s, "`", "")
			}
			return row
		}
	}
	return guarantee{}
}
