package bench

const (
	processes  = 4
	perProcess = 4
)

func inProcesses(at string, among []contender) scenario {
	return scenario{
		name: at + "/processes", at: at, title: "One lock, 4 processes of 4 goroutines, empty section",
		contenders: among, measure: measureProcesses,
	}
}

func measureProcesses(r *rig, c contender) (figures, error) {
	return measureTogether(r, c, job{Task: "contend", Goroutines: perProcess})
}

// measureTogether has processes do the same job.
func measureTogether(r *rig, c contender, j job) (figures, error) {
	j.Contender, j.At, j.Addr, j.Name, j.TTL, j.Time = c.name, r.at, r.Addr(), freshName(), ttl, r.time
	var children []*child
	for range processes {
		p, err := startChild(j)
		if err != nil {
			return nil, err
		}
		defer p.kill()
		children = append(children, p)
	}
	before, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	all, each, err := letContend(children)
	if err != nil {
		return nil, err
	}
	after, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	return append(contention(all, after.sent-before.sent),
		figure{"p99.9-ms", millis(all.Times.quantile(.999))},
		figure{"max/min process", spread(each)},
		figure{"max/min goroutine", spread(all.Each)}), nil
}

// letContend starts all children at once. It returns their common results, and the count of each.
func letContend(children []*child) (all *tally, each []int64, err error) {
	for _, p := range children {
		if err := p.proceed(); err != nil {
			return nil, nil, err
		}
	}
	all = &tally{}
	for _, p := range children {
		var t tally
		if err := p.receive(&t); err != nil {
			return nil, nil, err
		}
		each = append(each, t.total())
		all.Each = append(all.Each, t.Each...)
		all.Times.merge(&t.Times)
		all.Elapsed = max(all.Elapsed, t.Elapsed)
	}
	return all, each, nil
}

func contendInChild(j job, cl client, p *peer) error {
	// The warm-up runs without contention.
	if err := warmUpAlone(cl); err != nil {
		return err
	}
	if err := p.ready(); err != nil {
		return err
	}
	t, err := contend(cl, j.Name, j.Goroutines, j.Time)
	if err != nil {
		return err
	}
	return p.say(t)
}
