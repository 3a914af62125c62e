# make, or make help, says what there is.

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unversioned)
TOOLS   := /var/lib/sallyport/tools/bin
SCRIPTS := $(shell git ls-files '*.sh' .ci/run 2>/dev/null)
T       ?= 30s
FOR     ?= 5m
RATE    ?= 0

.DEFAULT_GOAL := help
.PHONY: help build setup setup-hardened demo test race fuzz lint lint-fast bench soak benchmarks golden docs clean ci

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/sallyport, a static binary
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.buildVersion=$(VERSION)' -o bin/sallyport ./cmd/sallyport
	chmod 0755 bin/sallyport

setup: ## get this machine ready (root): packages, container stack, image, users
	deploy/setup.sh packages stack image users

setup-hardened: ## setup, and gVisor
	deploy/setup.sh packages stack gvisor image users

demo: setup build ## setup, build, and a first run that shows what it does
	./bin/sallyport demo

test: setup-hardened ## every test (root), in a network namespace with no way out
	deploy/setup.sh clients
	go -C deploy/tools/image test -count=1 ./...
	deploy/test.sh

race: setup-hardened ## every test twice, shuffled, with the race detector (root)
	deploy/setup.sh clients
	deploy/test.sh -race -shuffle=on -count=2 -timeout 60m ./...

fuzz: ## every fuzz target for T=30s
	deploy/fuzz.sh $(T)

lint: ## golangci-lint at its pinned version, and shellcheck (root, the first time)
	deploy/setup.sh lint
	$(TOOLS)/golangci-lint run ./...
	cd test/sdk && $(TOOLS)/golangci-lint run ./...
	shellcheck -x $(SCRIPTS)

lint-fast: ## gofmt and vet
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not formatted:"; echo "$$unformatted"; exit 1; }
	go vet ./...

bench: ## the gateway against reference proxies, in turn, in a network namespace of its own (root; 4 min)
	CGO_ENABLED=0 go build -o bin/bench ./test/bench
	unshare --net sh -c 'ip link set lo up && exec bin/bench $(BENCH)'

soak: ## mixed load over all paths for FOR=5m, at RATE=N a second each, with killed clients: memory and descriptors stay flat (root)
	CGO_ENABLED=0 go build -o bin/bench ./test/bench
	unshare --net sh -c 'ip link set lo up && exec bin/bench soak -for $(FOR) -rate $(RATE)'

benchmarks: ## Go's benchmarks, with counts fit for benchstat
	go test -run '^$$' -bench . -benchmem -count 6 ./...

golden: ## rewrite the golden files and show what changed
	@packages=$$(grep -rlE --include='*_test.go' 'flag\.Bool\("update"' . | xargs -rn1 dirname | sort -u); \
	[ -n "$$packages" ] || { echo "no test takes -update"; exit 0; }; \
	go test $$packages -update && git diff --stat

docs: ## regenerate what the code documents of itself
	go generate ./...

clean: ## remove what build made; the caches stay
	rm -rf bin

ci: build test lint ## what must hold before a change lands
