// Package bench measures distlock side by side with other lock libraries for Redis
// and with the bare commands that each of them is made of: on one private server, in
// one run, in rounds that take turns.
//
// It has tests only. README.md says how to run and how to read them.
//
// A contender is an adapter behind one small interface; a scenario measures one
// contender once and answers with figures. The benchmarks and the report are two ways
// to call the same scenarios.
package bench
