package page

import (
	"fmt"
	"strings"
)

// languages of the page. The first is the default.
var languages = [...]string{"en", "zh-CN"}

// text returns one of the texts.
func text(lang int, key string, args ...any) string {
	t, ok := texts[key]
	if !ok {
		panic("there is no text " + key) // tests make every page
	}
	if len(args) == 0 {
		return t[lang]
	}
	return fmt.Sprintf(t[lang], args...)
}

// texts are the texts of the page, in each language.
var texts = map[string][len(languages)]string{
	"nav":         {"Pages", "页面"},
	"nav.locks":   {"Locks", "锁"},
	"nav.hot":     {"Hot names", "热点"},
	"nav.losses":  {"Losses", "丢失"},
	"nav.backend": {"Backend", "后端"},
	"skip":        {"Skip to the content", "跳到正文"},
	"live":        {"Live", "实时"},
	"live.off":    {"Reconnecting", "重新连接中"},
	"noscript":    {"Without JavaScript this page does not update by itself, and locks can't be broken here.", "未启用 JavaScript：页面不会自动更新，也无法在此强制解锁。"},
	"logout":      {"Log out", "退出"},
	"since.start": {"Waits, losses and fences are those that this server has seen since its start, %s ago. Other servers of the same backend see others.", "等待、丢失和栅栏令牌的记录，从本服务器启动时算起（已运行 %s）。同一后端的其他服务器各有各的记录。"},
	"trouble":     {"The backend does not answer. What you see is from before.", "后端没有应答，以下是先前的数据。"},

	"locks.title":    {"Locks", "锁"},
	"search":         {"Search by prefix", "按前缀搜索"},
	"search.go":      {"Search", "搜索"},
	"search.clear":   {"Clear", "清除"},
	"sum.held":       {"held", "被持有"},
	"sum.waiting":    {"waiting", "等待中"},
	"sum.late":       {"late to renew", "续期延迟"},
	"sum.late.help":  {"Less than a third of the TTL is left. A holder that lives renews earlier.", "剩余时间不足 TTL 的三分之一；活着的持有者早就续期了。"},
	"sum.rows":       {"%d of %d locks are shown. A prefix narrows them down.", "共 %[2]d 把锁，显示前 %[1]d 把。可按前缀缩小范围。"},
	"sum.listed":     {"There are more than %d names: the others are not listed here.", "名称超过 %d 个，其余未列出。"},
	"sum.none":       {"No lock is held.", "当前没有被持有的锁。"},
	"sort":           {"Sort by %s", "按%s排序"},
	"lock":           {"Lock", "锁"},
	"mode":           {"Mode", "模式"},
	"holder":         {"Holder", "持有者"},
	"fence":          {"Fence", "栅栏令牌"},
	"held":           {"Held for", "已持有"},
	"left":           {"Time left", "剩余时间"},
	"waiting":        {"Waiting", "等待"},
	"mode.exclusive": {"exclusive", "互斥"},
	"mode.write":     {"write", "写"},
	"mode.read":      {"read", "读"},
	"mode.counted":   {"permits", "许可"},
	"mode.free":      {"free", "空闲"},
	"others":         {"and %d more", "及其他 %d 个"},
	"unnamed":        {"unnamed holder", "未署名的持有者"},
	"foreign":        {"not distlock's", "非 distlock 写入"},
	"pid":            {"pid %s", "pid %s"},
	"unknown":        {"unknown", "未知"},
	"endless":        {"until released", "直到释放"},
	"unless":         {"unless it is renewed", "若不续期"},

	"back":            {"All locks", "全部锁"},
	"holders":         {"Holders", "持有者"},
	"holders.permits": {"%d of %d permits are taken", "已占用 %d / %d 个许可"},
	"holders.none":    {"The lock is free.", "锁空闲。"},
	"queue":           {"Queue", "队列"},
	"queue.none":      {"None wait.", "没有等待者。"},
	"queue.unknown":   {"The backend does not know how many wait.", "后端不知道有多少等待者。"},
	"queue.more":      {"%d more wait.", "另有 %d 个等待者。"},
	"history":         {"History of fences", "栅栏令牌历史"},
	"history.note":    {"As this server has seen it.", "仅本服务器所见。"},
	"history.none":    {"This server has not seen the lock held.", "本服务器尚未见过这把锁被持有。"},
	"history.began":   {"Granted", "拿到时间"},
	"history.waited":  {"Waited", "等待时长"},
	"history.held":    {"Held for", "持有时长"},
	"history.end":     {"End", "结束"},
	"end.holds":       {"holds", "持有中"},
	"end.released":    {"released", "已释放"},
	"end.lost":        {"lost", "丢失"},
	"end.broken":      {"broken", "强制解锁"},
	"end.expired":     {"expired", "过期"},
	"end.refenced":    {"new fence", "换发令牌"},
	"end.gone":        {"gone", "已消失"},
	"use":             {"Use", "使用情况"},
	"use.share":       {"Utilisation", "占用率"},

	"ask":         {"Ask for it", "请求释放"},
	"ask.backend": {"This backend can't ask a holder for its lock.", "此后端不能向持有者请求释放锁。"},
	"ask.mode":    {"This backend can't ask for a lock that is held in this way.", "此后端不能请求释放以这种方式持有的锁。"},
	"ask.help":    {"Requests the release. The holder decides.", "请持有者释放锁；是否释放由它决定。"},
	"break":       {"Break…", "强制解锁…"},
	"break.title": {"Break this lock?", "确定要强制解锁吗？"},
	"break.lock":  {"Lock", "锁"},
	"break.text":  {"The lock becomes free at once, and the next in the queue gets it. The holder learns of it at its next renewal. Until then it believes that it holds, and may still write.", "锁会立即空闲，由队列中的下一个获得。原持有者要到下次续期时才知道；在那之前，它仍以为自己持有锁，还可能继续写入。"},
	"break.sure":  {"Make sure that it is dead or stopped. Only a storage that checks fences refuses its late writes.", "请先确认它已经死亡或停止。只有校验栅栏令牌的存储，才会拒绝它迟到的写入。"},
	"break.type":  {"To go on, type the lock’s name", "输入锁名以继续"},
	"break.do":    {"Break the lock", "强制解锁"},
	"cancel":      {"Cancel", "取消"},
	"done.ask":    {"The holder was asked to release the lock. It decides whether and when.", "已请求持有者释放锁；是否释放、何时释放，由它决定。"},
	"done.break":  {"The lock was broken.", "已强制解锁。"},
	"done.gone":   {"That hold had ended before. Nothing was done.", "那次持有此前已经结束，未做任何操作。"},

	"hot.title": {"Hot names", "热点锁"},
	"hot.note":  {"Names with the longest waits come first. Charts show ten minutes, rates and utilisation the last minute, and waits the last 256 grants.", "等待最久的排在前面。图表为最近十分钟；速率与占用率取最近一分钟，等待时间取最近 256 次加锁。"},
	"hot.empty": {"No lock was taken through this server in the last ten minutes.", "最近十分钟内，没有经本服务器获取的锁。"},
	"hot.chart": {"Acquisitions a second over the last ten minutes, at most %.1f", "最近十分钟每秒获取次数，最高 %.1f"},
	"hot.rate":  {"Acquired", "获取速率"},
	"hot.p50":   {"Wait p50", "等待 P50"},
	"hot.p99":   {"Wait p99", "等待 P99"},
	"last.ten":  {"Last 10 min", "最近 10 分钟"},

	"losses.title":     {"Losses and unknown outcomes", "丢失与结果未知"},
	"losses.note":      {"Lost: the holder holds no more, and has been notified. Unknown: a renewal got no answer, and is tried again. Broken: unlocked by force.", "丢失：持有者已不再持有锁，并已得到通知。结果未知：续期没有得到应答，正在重试。强制解锁：由操作者强行解开。"},
	"losses.count":     {"%d since the start of this server, as distlock_server_losses_total counts them.", "本服务器启动以来共 %d 次，与 distlock_server_losses_total 的计数相同。"},
	"losses.empty":     {"No hold was lost, and every renewal was answered.", "没有丢失的锁，每次续期都有应答。"},
	"incident.when":    {"When", "时间"},
	"incident.what":    {"What", "事件"},
	"incident.lost":    {"lost", "丢失"},
	"incident.unknown": {"unknown", "结果未知"},
	"incident.broken":  {"broken", "强制解锁"},
	"incident.detail":  {"Detail", "详情"},
	"incident.by":      {"by %s", "由 %s"},

	"backend.title":    {"Backend", "后端"},
	"backend.round":    {"%d locks were read in %s.", "读取 %d 把锁用时 %s。"},
	"backend.calls":    {"Latency of its calls", "调用延迟"},
	"backend.note":     {"Quantiles are of the last 256 calls; charts show the mean over ten minutes.", "分位数取最近 256 次调用；图表为十分钟内的均值。"},
	"backend.call":     {"Call", "调用"},
	"backend.count":    {"Calls", "次数"},
	"backend.unknown":  {"No answer", "无应答"},
	"backend.max":      {"Max", "最大"},
	"backend.chart":    {"Mean latency over the last ten minutes, at most %.1f ms", "最近十分钟平均延迟，最高 %.1f 毫秒"},
	"backend.promises": {"What it promises", "保证"},
	"backend.can":      {"What it can do", "能力"},
	"can.modes":        {"Modes", "模式"},
	"can.queue":        {"Queue", "队列"},
	"can.revocable":    {"Can be asked for", "可请求释放"},
	"can.fences":       {"Fences", "栅栏令牌"},
	"comma":            {", ", "、"},
	"yes":              {"yes", "支持"},
	"no":               {"no", "不支持"},
	"promise.two":      {"Two holders at once are possible", "可能同时有两个持有者"},
	"promise.fences":   {"Fences can go back", "栅栏令牌可能倒退"},
	"promise.dead":     {"A dead process’s lock is free after", "进程死亡后，锁多久释放"},
	"promise.none":     {"The backend is not in the table of guarantees: see those of its members.", "保证表中没有这个后端，请看其各成员的保证。"},

	"login.title": {"Log in", "登录"},
	"login.token": {"Token", "访问令牌"},
	"login.do":    {"Log in", "登录"},
	"login.wrong": {"The server doesn’t know this token.", "服务器不认识这个访问令牌。"},
	"login.help":  {"The operator of this server gives you one. It stays in a cookie that scripts can’t read, until you close the browser.", "访问令牌由本服务器的管理员发放，保存在脚本读不到的 Cookie 里，关闭浏览器后失效。"},
	"error.title": {"That did not work", "操作未成功"},
	"again":       {"Go on", "继续"},
}

// guarantee is a backend's row of the table in docs/guarantees.md.
type guarantee struct{ Backend, Two, Back, Dead string }

// guarantees has the rows by the beginning of a backend's name, in each language.
var guarantees = []struct {
	starts string
	row    [len(languages)]guarantee
}{
	{"mem", [...]guarantee{
		{"memory (`mem:`)", "no", "no", "–"},
		{"内存（`mem:`）", "否", "否", "–"},
	}},
	{"sqlite:", [...]guarantee{
		{"SQLite", "no, unless the file is removed and made anew in use, or rows are deleted; elsewhere than on Linux also if -wal or -shm is removed, or the clock jumps", "if the clock goes back after all data is lost", "the TTL"},
		{"SQLite", "否，除非文件在使用中被删除重建，或者行被删除；非 Linux 系统上，删除 -wal 或 -shm、时钟跳变时也可能", "数据全部丢失且时钟倒退时", "TTL"},
	}},
	{"redis+sentinel", redisReplicated},
	{"redis+cluster", redisReplicated},
	{"rediss+sentinel", redisReplicated},
	{"rediss+cluster", redisReplicated},
	{"redis", redisAlone},
	{"quorum", [...]guarantee{
		{"Redlock", "if members forget their votes, or clocks jump", "if a member forgets and its clock is behind", "the TTL"},
		{"Redlock", "成员忘记投票或时钟跳变时", "某成员丢失数据且其时钟落后时", "TTL"},
	}},
	{"etcd:", [...]guarantee{
		{"etcd", "if the key is deleted", "if the data is replaced by a backup", "the TTL, a second and a half, and a commit"},
		{"etcd", "键被删除时", "数据被备份替换时", "TTL 加一秒半和一次提交"},
	}},
	{"kube:", [...]guarantee{
		{"Kubernetes", "if the Lease is deleted, or the clock of an API server jumps forward or is 5 s ahead of another's", "if the cluster's etcd is replaced by a backup", "the TTL, for those who have watched it for that long; for newcomers up to 10 s later"},
		{"Kubernetes", "Lease 被删除时，或某个 API server 的时钟向前跳变、比另一个快 5 s 时", "集群的 etcd 被备份替换时", "观察了一个 TTL 的进程：TTL；刚来的进程：最多再晚 10 s"},
	}},
	{"s3:", [...]guarantee{
		{"S3", "if the object is deleted, or the clock of a host of the store jumps forward or is 5 s ahead of another's", "if an older object is put back, or one is deleted in the second in which it was made, or the store's clock goes back", "the TTL, for those who have watched it for that long; for newcomers up to 10 s later"},
		{"S3", "对象被删除时，或存储中某台主机的时钟向前跳变、比另一台快 5 s 时", "放回较旧的对象，对象在创建的同一秒内被删除，或存储的时钟倒退时", "观察了一个 TTL 的进程：TTL；刚来的进程：最多再晚 10 s"},
	}},
	{"mysql", sqlRows},
	{"postgres", sqlRows},
}

var redisAlone = [...]guarantee{
	{"Redis, one server", "if it loses its memory, its clock jumps forward, or keys are evicted", "if it loses its memory and its clock goes back", "the TTL"},
	{"Redis，单机", "内存数据丢失、时钟向前跳变或键被淘汰时", "内存数据丢失且时钟倒退时", "TTL"},
}

var redisReplicated = [...]guarantee{
	{"Redis Sentinel, Cluster", redisAlone[0].Two + ", after a failover, and for readers and permits if they come to a server whose clock is ahead", redisAlone[0].Back, "the TTL"},
	{"Redis Sentinel、Cluster", redisAlone[1].Two + "，故障转移之后，以及读者和许可转到时钟超前的服务器时", redisAlone[1].Back, "TTL"},
}

var sqlRows = [...]guarantee{
	{"MySQL, PostgreSQL: rows", "if commits are not flushed, after a failover that loses commits, if rows are deleted, or if the clock jumps forward", "with what loses commits, if the clock goes back", "the TTL"},
	{"MySQL、PostgreSQL：行策略", "提交未落盘、故障转移丢失提交、行被删除或时钟向前跳变时", "提交丢失，同时时钟倒退时", "TTL"},
}

// guaranteeOf returns the row of a backend; an empty one if the table has none.
func guaranteeOf(name string, lang int) guarantee {
	for _, g := range guarantees {
		if strings.HasPrefix(name, g.starts) {
			row := g.row[lang]
			row.Backend = strings.ReplaceAll(row.Backend, "`", "")
			return row
		}
	}
	return guarantee{}
}
