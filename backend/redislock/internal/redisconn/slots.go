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

// HashTag returns the part of a key that decides its slot, if it has one.
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

// slotTable has the address of the server of each slot, or a single address if one server has all
// keys.
type slotTable []string

// owner returns the address for a key, or of any server for no key.
func (t slotTable) owner(key string) string {
	switch {
	case key == "":
		return cmp.Or(t...)
	case len(t) == 1:
		return t[0]
	}
	return t[SlotOf(key)]
}

func (t slotTable) addrs() []string {
	list := slices.Compact(slices.Clone(t)) // most slots have the same server as the one before
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(addr string) bool { return addr == "" })
}
