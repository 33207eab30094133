package redisconn

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// slots is the number of a cluster's slots.
const slots = 16384

// SlotOf returns the slot of a key: the slot of its hash tag if it has one, or of the whole key.
func SlotOf(key string) int {
	if tag, ok := HashTag(key); ok {
		key = tag
	}
	return int(crc16(key)) % slots
}

func HashTag(key string) (tag string, ok bool) {
	_, rest, ok := strings.Cut(key, "{")
	if !ok {
		return "", false
	}
	tag, _, ok = strings.Cut(rest, "}")
	return tag, ok && tag != ""
}

// crc16 is the checksum of clusters: CCITT, from zero.
func crc16(s string) uint16 {
	var sum uint16
	for i := range len(s) {
		sum = sum<<8 ^ crcTable[byte(sum>>8)^s[i]]
	}
	return sum
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		sum := uint16(i) << 8
		for range 8 {
			if sum&0x8000 != 0 {
				sum = sum<<1 ^ 0x1021
			} else {
				sum <<= 1
			}
		}
		table[i] = sum
	}
	return table
}()

// SlotTags returns for each slot the shortest number that lies in it.
var SlotTags = sync.OnceValue(func() *[slots]string {
	var tags [slots]string
	for n, left := 0, slots; left > 0; n++ {
		tag := strconv.Itoa(n)
		if at := &tags[crc16(tag)%slots]; *at == "" {
			*at = tag
			left--
		}
	}
	return &tags
})

// slotTable says which server has which slots, in their order.
type slotTable []slotRange

type slotRange struct {
	first, last int
	addr        string
}

func (t slotTable) owner(slot int) string {
	i, _ := slices.BinarySearchFunc(t, slot, func(s slotRange, slot int) int { return cmp.Compare(s.last, slot) })
	if i < len(t) && t[i].first <= slot {
		return t[i].addr
	}
	return ""
}

// moved returns the table with one slot at another server.
func (t slotTable) moved(slot int, addr string) slotTable {
	var list slotTable
	for _, s := range t {
		if slot < s.first || slot > s.last {
			list = append(list, s)
			continue
		}
		if s.first < slot {
			list = append(list, slotRange{s.first, slot - 1, s.addr})
		}
		if slot < s.last {
			list = append(list, slotRange{slot + 1, s.last, s.addr})
		}
	}
	list = append(list, slotRange{slot, slot, addr})
	slices.SortFunc(list, func(a, b slotRange) int { return cmp.Compare(a.first, b.first) })
	return list
}

func (t slotTable) addrs() []string {
	var list []string
	for _, s := range t {
		list = append(list, s.addr)
	}
	slices.Sort(list)
	return slices.Compact(list)
}
