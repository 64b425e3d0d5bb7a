# Everything here runs on a fresh machine with Rust, Go and make; what is missing is named.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A failed test says what it waited for; forty frames of the runtime below it would hide that.
export RUST_LIB_BACKTRACE := 0

TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: test
test: lint unit alerts model e2e crowd elections ## Everything that CI runs: lint, unit, alerts, model, e2e, crowd, elections

.PHONY: lint
lint: need-cargo ## Formatting and clippy, warnings denied
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings

.PHONY: unit
unit: need-cargo ## Unit and integration tests: fast, no cluster
	cargo test --locked --lib --bins --test it

.PHONY: alerts
alerts: promtool ## The alerts, as Prometheus itself reads them: when they fire and when they do not
	"$(TARGET)/controlplane/promtool/promtool" check rules charts/leasehold/files/alerts.yaml
	"$(TARGET)/controlplane/promtool/promtool" test rules tests/alerts/alerts.test.yaml

.PHONY: model
model: need-cargo ## The protocol model-checked to completion, and its negative controls
	cargo test --locked --profile model --test model -- --nocapture --test-threads 1

.PHONY: e2e
e2e: need-cargo controlplane controlplane-floor ## Our binaries against a real etcd and kube-apiserver
	cargo test --locked --test e2e -- --test-threads 6

.PHONY: crowd
crowd: need-cargo controlplane ## 200 agents that ask for one lock within a second, and what that costs
	cargo test --locked --test e2e crowd:: -- --ignored --nocapture --test-threads 1

.PHONY: elections
elections: need-cargo controlplane ## Five candidates in three minutes of trouble: never two leaders
	cargo test --locked --test e2e election::storm -- --ignored --nocapture

.PHONY: run
run: need-cargo ## Locks without a cluster, to try curl on; flags in ARGS (docs/dev.md)
	cargo build --locked
	@exec "$(TARGET)/debug/leasehold" dev $(ARGS)

.PHONY: demo
demo: need-cargo controlplane ## A control plane and two sidecars to try curl and kubectl on
	cargo build --locked
	cargo run --locked --quiet --example demo -- "$(TARGET)/debug/leasehold"

.PHONY: bench
bench: need-cargo controlplane bench-peers ## Medians and ratios in one run; parts of it: ARGS="calls peers many-locks many-pods operator"
	cargo build --locked --release
	cargo run --locked --release --quiet --example bench -- "$(TARGET)/release/leasehold" \
		"$(TARGET)/bench/leaderelection" "$(TARGET)/bench/etcdmutex" $(ARGS)

.PHONY: bench-peers
bench-peers: need-go # What the bench compares with; each a module of its own, which pins its versions
	mkdir -p "$(TARGET)/bench"
	for peer in leaderelection etcdmutex; do (cd "bench/$$peer" && CGO_ENABLED=0 GOWORK=off \
		go build -mod=readonly -buildvcs=false -trimpath -ldflags "-s -w" \
		-o "$(abspath $(TARGET))/bench/$$peer" .); done

.PHONY: controlplane
controlplane: ## Builds etcd, kube-apiserver, kubectl and kube-controller-manager for the tests, once, under target/
	tests/controlplane/build.sh etcd v1.36

.PHONY: controlplane-floor
controlplane-floor: ## The same for the oldest Kubernetes that is promised
	tests/controlplane/build.sh v1.33

.PHONY: promtool
promtool: # Prometheus' own checker of rules, built once, under target/
	tests/controlplane/build.sh promtool

.PHONY: generate
generate: need-cargo ## Rewrites what is generated: crds/, docs/openapi.json, tests/golden/webhook and a table in docs/
	LEASEHOLD_REGENERATE=1 cargo test --locked --quiet --test it drift

.PHONY: deny
deny: need-cargo ## Licences, advisories and duplicates of the dependencies (needs cargo-deny)
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is missing: cargo install --locked cargo-deny" >&2; exit 1; }
	cargo deny check

.PHONY: need-go
need-go:
	@command -v go >/dev/null || { echo "go is missing: install Go 1.26 or later (https://go.dev/dl)" >&2; exit 1; }

.PHONY: need-cargo
need-cargo:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust (https://rustup.rs)" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "a C compiler is missing: apt-get install gcc" >&2; exit 1; }
