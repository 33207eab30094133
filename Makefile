GO          ?= go
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Tests need real servers, which make servers installs; one that is missing is a failure.
DISTLOCK_TEST_REQUIRE ?= all
export DISTLOCK_TEST_REQUIRE

# The race detector waits for a second at the end of each process, for others to reach a race; this is enough.
GORACE ?= atexit_sleep_ms=50
export GORACE

# Packages whose tests start clusters: an election needs the machine, so these run one after the other.
SERIAL = ./backend/etcdlock ./backend/redislock ./backend/redislock/internal/redisconn \
	./backend/zklock ./proof/rediswrites ./cmd/distlock/internal/cli ./internal/testkit/testserver ./internal/zk ./interop/curator ./interop/redisson ./proof/chaos
# Packages with peers in other languages and libraries, which only make test-long runs.
PEERS = ./interop/strings ./interop/etcd ./interop/zk
# Packages that have tests for make test-long only.
LONGONLY = ./proof/faultfuzz ./proof/model ./interop/kube
# Packages whose tests for make test-long need the machine: an API server and a gateway answer late beside others.
ALONE = ./backend/kubelock ./backend/s3lock ./interop/kube
# Packages of all modules that make test runs, first those that take long and are not SERIAL.
TESTED = $(shell $(GO) list ./proof/sqltest ./proof/clients ./proof/served ./backend/pglock ./backend/mysqllock work | awk '!seen[$$0]++' | grep -v -e '/distlock/bench$$' $(patsubst ./%,-e '/distlock/%$$',$(PEERS) $(LONGONLY)))
# Packages that have tests which only make test-long runs. The soak has a line of its own.
LONG = $(shell grep -rl --include=*_test.go '^func TestLong[A-Z]' . | xargs -n1 dirname | sort -u | grep -v -e '^./bench' -e /soak$$ $(patsubst %,-e '^%$$',$(ALONE)))
# Cells of chaos that CI runs: eight stores and layouts.
CELLS = redis-aof-kill-server|redis-sentinel-failover|redlock-aof-kill-server|etcd-cluster-kill-leader|zookeeper-cluster-kill-leader|mariadb-lose-requests|postgres-kill-server|served-two-turmoil
# Packages that have benchmarks.
BENCHED = $(shell grep -rl --include=*_test.go '^func Benchmark' . | xargs -n1 dirname | sort -u)
# Tests of the core with thousands of calls, or that repeat themselves: they do not run twenty times.
ONCE = ^Test(Large|Long|Storm)[A-Z]?|Outage|SilentHolds|SilentReleases|NothingSent|UnlockMeetsClose
GOTEST = $(GO) run ./internal/gotest -serial '$(SERIAL)' -slowest 10
# SQLite, translated from C, is slow under checks of memory, and is not this project's code.
UNCHECKED = -gcflags='modernc.org/sqlite/lib=-race=false -d=checkptr=0'
# Linking is a good part of a run, and less without what only debuggers read.
RACE = -race -shuffle=on -vet=off -ldflags=-w $(UNCHECKED)
# All packages are compiled at once, and nothing is linked yet.
COMPILE = @echo "compiling"; $(GO) list -export -deps -test -race $(UNCHECKED) work > /dev/null

.PHONY: help servers servers-long test test-faults test-long long-soak long-suites long-idle long-fuzz long-rest long-alone test-under-load model lint tidy install use release man packages bench performance statements bench-once lint-bench chaos soak check api

help: ## show this help
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

servers: ## install the servers that tests need, with apt-get (as root) and from the registries of Python, Maven and Go
	@GO="$(GO)" bash -eu -o pipefail internal/testkit/servers.sh

servers-long: ## install also those that only make test-long needs
	@GO="$(GO)" bash -eu -o pipefail internal/testkit/servers.sh long

test: servers ## run the tests with the race detector (minutes)
	$(COMPILE)
	@echo "$(GO) test $(RACE), all packages"
	@$(GOTEST) -hang 5m $(TESTED) -- $(RACE) -timeout 2h -skip '^TestLong[A-Z]'

test-long: servers-long ## run what takes longer: fuzzing, faults, a soak, old servers, other languages, the core twenty times (half an hour)
	$(COMPILE)
	@$(MAKE) -j 5 long-soak long-suites long-idle long-fuzz long-rest
	@$(MAKE) long-alone

# The soak is beside all others: it lasts. The race detector would double what it costs, and is with all of the suites.
long-soak:
	$(GO) test -vet=off -timeout 30m -run '^TestLong[A-Z]' ./proof/soak -args -soak.for 10m -soak.rate 120

long-suites:
	$(GOTEST) -hang 5m $(LONG) -- $(RACE) -timeout 2h -run '^TestLong[A-Z]'

# What needs no time but a processor's takes what the suites leave idle, and gives way to them.
long-idle:
	nice -n 19 $(GO) test $(RACE) -timeout 1h -count=20 -skip '$(ONCE)' . ./driver
	nice -n 19 $(GO) test -vet=off -timeout 1h -run 'TestStorm$$' . -args -storm.worlds 556

# By now what is left of the suites are packages that start clusters, one after the other: they leave a processor idle.
long-fuzz: long-idle
	nice -n 19 $(GO) test -vet=off -run '^$$' -fuzz FuzzCalls -fuzztime 1m -fuzzminimizetime 1s -parallel 1 ./server

long-rest: long-idle
	$(GO) test -p 1 $(RACE) -timeout 15m $(PEERS)
	internal/modules.sh test

long-alone:
	$(GO) test -p 1 $(RACE) -timeout 15m -run '^TestLong[A-Z]' $(ALONE)

test-faults: servers ## late calls on all stores, and chaos in eight cells (four minutes)
	$(GO) test -vet=off -timeout 30m -run '^TestLongLateCalls$$' ./proof/faultfuzz
	$(GO) test -vet=off -timeout 30m -run '^TestLongCells$$/^($(CELLS))$$' ./proof/chaos

test-under-load: ## run make test beside four processes that burn CPU; this finds tests that a busy machine breaks
	@for i in 1 2 3 4; do sh -c 'while :; do :; done' & burners="$$burners $$!"; done; \
	trap 'kill $$burners' EXIT; trap 'exit 130' INT TERM HUP; $(MAKE) test

soak: servers ## locks of a hundred thousand names on all stores at once, for an hour: nothing may grow; the table is in proof/RESULTS.md
	$(GO) test -vet=off -v -timeout 3h -run '^TestLongSoak$$' ./proof/soak -args -soak.for 1h -soak.names 100000 -soak.rate 800 -save

model: servers ## check the specifications in proof/model, every state of the large scenarios too (minutes)
	$(GO) test -vet=off -timeout 2h -count=1 -v -run '^TestLong' ./proof/model -args -model.large

lint: ## formatting, vet, staticcheck, other systems, and go.mod
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-ed:"; gofmt -l .; exit 1; }
	$(GO) vet -stdversion=false work
	GOOS=windows $(GO) list -export -deps work > /dev/null
	GOOS=darwin $(GO) list -export -deps work > /dev/null
	$(GO) run $(STATICCHECK) work
	internal/modules.sh check

tidy: ## write go.mod and go.sum of all modules anew
	internal/modules.sh tidy

release: ## tag all modules: make release VERSION=v0.1.0 shows what it would do; with DRY_RUN=no it does it
	@DRY_RUN=$(DRY_RUN) internal/modules.sh release "$(VERSION)"

install: ## install the command, in two programs that belong together: distlock, and distlock-all, which it becomes for etcd and S3
	CGO_ENABLED=0 $(GO) install -trimpath -ldflags '-s -w' ./cmd/distlock ./cmd/distlock/distlock-all

use: ## let the program in another folder take distlock from this clone: make use DIR=/path/to/app
	@internal/modules.sh use "$(DIR)"

man: ## write manual pages of the command, from its help, into dist/man
	mkdir -p dist/man
	cd cmd/distlock && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(GO) run ./internal/man ../../dist/man

packages: ## build a deb, an rpm, and the clients for Python, Node and Java into dist: make packages VERSION=v0.1.0; v0.0.0 without it
	contrib/packages/build.sh "$(or $(VERSION),v0.0.0)"
	@for client in $(wildcard clients/*/package); do echo "$$client"; $$client "$(or $(VERSION),v0.0.0)" || exit 1; done

bench: ## the benchmarks side by side with the peers, into docs/performance.md and bench/RESULTS.md (an hour; needs a quiet machine)
	cd bench && $(GO) test -run TestReport -report . -save -for 1s -timeout 2h

performance: ## write docs/performance.md, its charts and bench/RESULTS.md anew from bench/results.json, without measuring
	cd bench && $(GO) test -run TestReport -save

statements: servers ## how many statements of this project an uncontended Lock and Unlock runs; V=-v lists the files
	@cd proof/statements && $(GO) test -vet=off -run '^TestLongStatements$$' $(V)

bench-once: ## every benchmark once, so that none rots
	$(GO) test -vet=off -run '^$$' -bench . -benchtime 1x $(BENCHED)

chaos: servers-long ## break servers, clients, networks and clocks at length, and write what that showed into proof/RESULTS.md and docs/faults.md (about forty minutes)
	$(GO) test -run '^TestLongCells$$' -v -timeout 1h ./proof/chaos -args -full
	$(GO) test -run '^TestReport$$' ./proof/chaos -args -save

chaos-%: ## one of that: make chaos-redis-aof-kill-server (go test -v -run TestCells ./proof/chaos lists all)
	@GO="$(GO)" bash -eu -o pipefail internal/testkit/servers.sh chaos "$*"
	$(GO) test -run '^TestLongCells$$/^$*$$' -v -timeout 30m ./proof/chaos -args -full

api: ## write the listing of the public API anew
	$(GO) test ./internal/api -run TestListing -update

# Linters compute and benchmarks wait, so they run beside each other.
lint-bench:
	nice -n 19 $(MAKE) lint & $(MAKE) bench-once && wait $$!

check: test test-faults lint-bench ## what CI runs
