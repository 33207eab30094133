package redisconn

import (
	"strconv"
	"strings"
	"sync"
)

// slots is how many pieces a cluster's keys are divided into.
const slots = 16384

// SlotOf is the slot of a key: that of the text between its first { and the next }, if
// there is any, else of the whole key.
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

// crc16 is the checksum that clusters use: CCITT, from zero.
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

// SlotTags has for each slot a text that lies in it, the shortest number that does.
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
