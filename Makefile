# What CI runs is `make check` and nothing else.

GO          ?= go
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Tests need real servers, which make servers installs; one that is missing is a failure.
# Make it empty to skip what needs a server that is missing.
DISTLOCK_TEST_REQUIRE ?= all
export DISTLOCK_TEST_REQUIRE

# Tests of tens of thousands of calls, which run once and not fifty times.
LARGE = Outage|Backlog|SilentHolds|SilentReleases|MoreThanCanBeReleased|NothingSent

.PHONY: help servers test lint bench bench-once check api

help: ## show this help
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

servers: ## install the servers that tests need, with apt-get (as root) and from the registries of Python, Maven and Go
	$(GO) run ./internal/testserver/provide

test: servers ## run every test with the race detector, the core's fifty times
	$(GO) run ./internal/gotest -hang 4m -- -race -shuffle=on -timeout 20m
	$(GO) test -race -shuffle=on -timeout 15m -count=50 -skip '$(LARGE)' . ./driver
	cd interop/strings && $(GO) test -race -shuffle=on -timeout 5m ./...
	cd interop/etcd && $(GO) test -race -shuffle=on -timeout 15m ./...
	cd interop/zk && $(GO) test -race -shuffle=on -timeout 5m ./...

lint: ## formatting, vet, staticcheck, go.mod, and the listing of the public API
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-ed:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) mod tidy -diff
	cd bench && $(GO) vet ./... && $(GO) mod tidy -diff
	cd interop/strings && $(GO) vet ./... && $(GO) mod tidy -diff
	cd interop/etcd && $(GO) vet ./... && $(GO) mod tidy -diff
	cd interop/zk && $(GO) vet ./... && $(GO) mod tidy -diff

bench: ## the benchmarks side by side with the peers (minutes; needs a quiet machine)
	cd bench && $(GO) test -run TestReport -report . -for 2s -timeout 1h

bench-once: ## every benchmark once, so that none rots
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...
	cd bench && $(GO) test -run '^$$' -bench . -benchtime 1x ./...

api: ## write the listing of the public API anew
	$(GO) test ./internal/api -run TestListing -update

check: test lint bench-once ## what CI runs
