package testserver

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// view is the cluster as one of its nodes sees it.
type view []nodeLine

// nodeLine is a node, as CLUSTER NODES describes it.
type nodeLine struct {
	id    string
	flags []string
	slots [][2]int // first and last of each range
}

func (n *nodeLine) is(flag string) bool { return slices.Contains(n.flags, flag) }

func clusterView(s *RedisServer) (view, error) {
	reply, err := s.poll("CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	var v view
	for line := range strings.Lines(fmt.Sprint(reply)) {
		if fields := strings.Fields(line); len(fields) >= 8 {
			v = append(v, nodeLine{id: fields[0], flags: strings.Split(fields[2], ","), slots: slotRanges(fields[8:])})
		}
	}
	return v, nil
}

// slotRanges reads "7", "0-5460", and leaves out what is on the move: "[7->-id]".
func slotRanges(fields []string) [][2]int {
	var ranges [][2]int
	for _, f := range fields {
		first, last, ok := strings.Cut(f, "-")
		if !ok {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err == nil && err2 == nil {
			ranges = append(ranges, [2]int{a, b})
		}
	}
	return ranges
}

func (v view) node(id string) *nodeLine {
	i := slices.IndexFunc(v, func(n nodeLine) bool { return n.id == id })
	if i < 0 {
		return nil
	}
	return &v[i]
}

func (v view) count(flag string) int {
	n := 0
	for i := range v {
		if v[i].is(flag) {
			n++
		}
	}
	return n
}

// owner is the id of the node that a slot belongs to.
func (v view) owner(slot int) string {
	for _, n := range v {
		for _, r := range n.slots {
			if r[0] <= slot && slot <= r[1] && !n.is("fail") {
				return n.id
			}
		}
	}
	return ""
}

// takesCommands succeeds if a node finds its cluster in order.
func takesCommands(s *RedisServer) error {
	reply, err := s.poll("CLUSTER", "INFO")
	if err == nil && !strings.Contains(fmt.Sprint(reply), "cluster_state:ok") {
		err = fmt.Errorf("%s says the cluster is down: %w", s.Addr(), errNotYet)
	}
	return err
}
