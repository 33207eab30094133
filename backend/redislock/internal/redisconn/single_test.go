package redisconn

import "testing"

func TestVerdicts(t *testing.T) {
	for text, want := range map[string]struct {
		why  redirection
		addr string
	}{
		"MOVED 12 10.0.0.1:6379":     {movedTo, "10.0.0.1:6379"},
		"MOVED 12 redis-1.local:443": {movedTo, "redis-1.local:443"},
		"MOVED 12 ::1:6379":          {movedTo, "[::1]:6379"},
		"ASK 12 fe80::2:3:6379":      {askAt, "[fe80::2:3]:6379"},
		"ASK 12 [::1]:6379":          {askAt, "[::1]:6379"},
		"MOVED 12 :6379":             {notReady, ""},
		"ASK 12 ?:6379":              {notReady, ""},
		"MOVED 12":                   {notReady, ""},
		"TRYAGAIN Multiple keys":     {notReady, ""},
		"READONLY You can't write":   {notReady, ""},
		"ERR MOVED 12 10.0.0.1:6379": {executed, ""},
		"UNBLOCKED force unblock":    {executed, ""},
	} {
		if why, addr := redirectionOf(&ReplyError{Text: text}); why != want.why || addr != want.addr {
			t.Errorf("%s: %v %q, want %v %q", text, why, addr, want.why, want.addr)
		}
	}
}

// A pipeline is sent elsewhere only if nothing of it had an effect.
func TestVerdictsOnPipelines(t *testing.T) {
	moved := Answer{Err: &ReplyError{Text: "MOVED 12 10.0.0.1:6379"}}
	commands := [][]string{{"SET"}, {"XADD"}, {"GET"}}
	for _, c := range []struct {
		what string
		got  []Answer
		want redirection
	}{
		{"all", []Answer{moved, moved, moved}, movedTo},
		{"all behind the first", []Answer{{Reply: "OK"}, moved, moved}, executed},
		{"all behind a first that did nothing", []Answer{{}, moved, moved}, executed},
		{"all but the second", []Answer{moved, {Reply: "1-0"}, moved}, executed},
		{"all but a look", []Answer{moved, moved, {Reply: "x"}}, movedTo},
	} {
		if why, _ := redirectionOfAll(commands, c.got); why != c.want {
			t.Errorf("%s moved: %v, want %v", c.what, why, c.want)
		}
	}
}

func TestErrorCodes(t *testing.T) {
	for _, c := range []struct {
		text, code string
		want       bool
	}{
		{"WRONGTYPE Operation against", "WRONGTYPE", true},
		{"ERR Error running script (call to f_1): @user_script:3: WRONGTYPE Operation against", "WRONGTYPE", true},
		{"ERR user_script:9: WRONGTYPE Operation", "WRONGTYPE", true},
		{"ERR the word WRONGTYPE", "WRONGTYPE", false},
		{"NOSCRIPT No matching script", "NOSCRIPT", true},
		{"NOSCRIPTS", "NOSCRIPT", false},
	} {
		if got := (&ReplyError{Text: c.text}).HasCode(c.code); got != c.want {
			t.Errorf("%q is %s: %v", c.text, c.code, got)
		}
	}
}
