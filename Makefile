# Everything runs on Go, and the tests on PostgreSQL and NATS too: `make postgres nats` installs them where
# they are missing. Tools are fetched at the versions below through the Go module proxy, and cached
# by Go; nothing else is installed.

BUF           := go run github.com/bufbuild/buf/cmd/buf@v1.75.0
GOLANGCI_LINT := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK   := go run golang.org/x/vuln/cmd/govulncheck@v1.9.0

FUZZTIME ?= 6s

# Tests that wait more than they work. Begun first, they leave the processor to the others.
SLOW_FIRST := ./store/sqlstore ./region/regiontest ./store/sqlstore/sqltest

# Packages at once: many wait, and under the race detector each has one processor.
AT_ONCE := -p $(shell expr $$(nproc) + 1)

# Left out by 'make race': tests of processes, which are built without the race detector, of what
# other packages' tests use under it, and of guards, which share nothing but a database.
NOT_RACED := -e /cmd/idemd$$ -e /client/guard$$ -e /client/guard/ -e /client/examples/ -e /sqlstore/pgfault$$ -e /sqlstore/pgtest$$

# A module of its own, which './...' does not see: its library is to be in the go.sum of nobody who uses idemd.
OUTBOX := client/examples/outbox

.DEFAULT_GOAL := help

.PHONY: help
help: ## Print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/idemd
	go build -o bin/idemd ./cmd/idemd

.PHONY: postgres
postgres: ## Install the server binaries of PostgreSQL (Debian's), if there are none
	@.ci/postgres

.PHONY: nats
nats: ## Install NATS's server (Debian's), if there is none
	@.ci/nats

.PHONY: test
test: postgres nats ## Run every test
	go test $(AT_ONCE) $(SLOW_FIRST) ./cmd/idemd ./...
	go -C $(OUTBOX) test ./...
	@test -n "$$IDEMD_COCKROACH_DSN" || echo "test: CockroachDB was NOT run: IDEMD_COCKROACH_DSN is not set"
	@command -v chromium >/dev/null || echo "test: Chromium was NOT run: it is not installed"

# On one processor, as all timers of a synctest bubble share one context of the race detector,
# and timers fired on two processors at once corrupt it: a SIGSEGV inside the detector
# (https://github.com/golang/go/issues/78156). A race is found by what orders two accesses,
# not by their being made at the same instant; 'make test' runs on all processors.
.PHONY: race
race: postgres nats ## Run the tests under the race detector, the heavy ones shortened or left out
	@echo "race: -short: what only repeats for long is shortened or left out, as the race detector makes it many times slower; 'make test' runs all of it. Affected:"
	@grep -rl --include='*_test.go' 'testing.Short()' .
	go test -race -short -cpu 1 $(AT_ONCE) $(SLOW_FIRST) $$(go list ./... | grep -v $(NOT_RACED))

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (6s), two at once
	.ci/fuzz $(FUZZTIME)

.PHONY: seeded
seeded: postgres ## Check that the tests catch the bugs seeded behind build tags, in both stores
	.ci/seeded

.PHONY: bench
bench: ## Compare idemd with a bare gRPC server, on this machine (5 minutes)
	go run ./cmd/idemd bench

.PHONY: lint
lint: ## Lint Go and protobuf, and check that go.mod says what is used
	go mod tidy -diff
	$(GOLANGCI_LINT) run ./...
	cd $(OUTBOX) && go mod tidy -diff && $(GOLANGCI_LINT) run ./...
	$(BUF) lint
	$(BUF) format --diff --exit-code

.PHONY: fmt
fmt: ## Format Go and protobuf
	$(GOLANGCI_LINT) fmt ./... # in every directory, also of other modules
	$(BUF) format --write

.PHONY: generate
generate: ## Generate Go from proto/
	$(BUF) generate

.PHONY: check-generated
check-generated: generate ## Fail if the generated code is not that of proto/
	git diff --exit-code -- proto
	@test -z "$$(git status --porcelain -- proto)" || { git status --short -- proto; echo "proto/ holds files that are not committed" >&2; exit 1; }

.PHONY: vuln
vuln: ## Look for known vulnerabilities
	GOVULNCHECK="$(GOVULNCHECK)" .ci/vuln .
	GOVULNCHECK="$(GOVULNCHECK)" .ci/vuln $(OUTBOX)

.PHONY: ci
ci: ## What continuous integration runs
	.ci/run
