# Every target runs on a fresh machine with Rust, Go and make. A target names the programs that are missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A failed test prints what it waited for. Forty stack frames of the runtime would hide that message.
export RUST_LIB_BACKTRACE := 0

# Property tests use the same inputs in each run, so a new failure comes from a change. Set another seed to search.
export PROPTEST_RNG_SEED := $(or $(PROPTEST_RNG_SEED),8)

# The node tests need root. Without root, `no-node` prints that they were skipped.
NODE := $(if $(filter 0,$(shell id -u)),node-e2e,no-node)
NODE_BUILDS := $(if $(filter node-e2e,$(NODE)),image controlplane-node)

# As in the names of the images.
ARCH := $(if $(filter aarch64,$(shell uname -m)),arm64,amd64)

TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The ladder: `check` before each commit, `test` before a change is merged, `prove` for everything. CI runs `prove`.

.PHONY: check
check: lint unit sim-short ## Minutes, no cluster: format, clippy, unit and integration tests, 40 simulated worlds

.PHONY: test
test: check clients policies api-schema chart alerts e2e page fences ## Required for each change: check, clients, the policies, API schema, chart, alerts, e2e, page, fences

# Two rows of targets: the first one waits most of the time, and leaves a core to the second one, which ends with what
# only computes. `sim` has the worlds of `check`.
WAITING := lint unit clients e2e clients-e2e page fences fault elections floor comparison crowd $(NODE)
COMPUTING := controlplane helm versitygw h2spec policies api-schema chart alerts controlplane-floor $(NODE_BUILDS) bugs sim

.PHONY: prove
prove: two-rows ## `test` and the long runs, shorter than by themselves: seeded bugs, faults, 1,000 worlds, oldest Kubernetes, crowd, elections, client-go, node

.PHONY: two-rows
two-rows: need-cargo need-go
	$(MAKE) --no-print-directory --output-sync=target --jobs 2 waiting computing

# By themselves these take ten minutes and three.
.PHONY: waiting
waiting: export FAULT_MINUTES := $(or $(FAULT_MINUTES),4)
waiting: export LEASEHOLD_STORM_SECONDS := $(or $(LEASEHOLD_STORM_SECONDS),90)
waiting:
	@$(call in_turn,$(WAITING))

# It gets what the first row leaves: agents that wait seconds for a processor lose their leases.
.PHONY: computing
computing:
	@$(call in_turn,$(COMPUTING),nice -n 19)

# Makes targets one after another, and prints how long each took.
in_turn = for target in $(1); do SECONDS=0; $(2) $(MAKE) --no-print-directory $$target; echo "$$target took $$SECONDS s"; done

# Those that are shipped. Together they have their dependencies with one set of features, so these are built once.
CRATES := --locked --package leasehold --package leasehold-client

.PHONY: lint
lint: need-cargo ## Formatting and clippy, warnings denied
	cargo fmt --all --check
	cargo clippy $(CRATES) --all-targets -- -D warnings

.PHONY: unit
unit: need-cargo need-jq need-git ## Unit and integration tests and a short fuzz run: fast, no cluster
	@# Many tests wait for processes, and leave the processors to others.
	cargo test $(CRATES) --lib --bins --test it --test history --test fuzz -- --test-threads 4

.PHONY: sim-short
sim-short: need-cargo # 40 worlds of the simulation, without compiler optimization
	SIM_SEEDS=0..40 scripts/ran.sh cargo test --locked --test sim invariants_hold

.PHONY: policies
policies: need-go ## The admission policies and the CRDs' rules, evaluated by Kubernetes' own validators: seconds, no cluster
	@# Go's test cache does not notice changes to files outside the module.
	cd tests/policies && GOWORK=off go vet -mod=readonly ./... && GOWORK=off go test -mod=readonly -count=1 ./...

.PHONY: api-schema
api-schema: need-cargo ## Compares the OpenAPI document with what the API accepts, by Schemathesis (needs Python 3.10)
	@# A separate `cargo build` would compile most dependencies again, without the features that only tests need.
	cargo test --locked --no-run --test it
	tests/api-schema/run.sh "$(TARGET)/debug/leasehold" "$(TARGET)/api-schema"

CLIENTS := $(or $(ON),go java python rust typescript)

.PHONY: clients
clients: clients-built ## The client libraries: their linters and tests, and the conformance suite on `leasehold dev`; only some languages: ON="go java"
	LEASEHOLD_CLIENTS="$(TARGET)/clients" scripts/ran.sh cargo test --locked --test it -- \
		$(CLIENTS:%=clients::%::) --ignored --test-threads 6

.PHONY: clients-built
clients-built: need-cargo need-go
	scripts/need.sh clients
	for client in $(CLIENTS); do clients/$$client/check.sh "$(TARGET)/clients/$$client"; done

.PHONY: clients-e2e
clients-e2e: clients-built controlplane ## The client libraries on real sidecars; only some languages: ON="go java"
	LEASEHOLD_CLIENTS="$(TARGET)/clients" scripts/ran.sh cargo test --locked --test e2e -- \
		$(CLIENTS:%=client_libraries::%::) --ignored --test-threads 4

.PHONY: page
page: need-cargo controlplane ## The page of `kubectl leasehold ui` in a real Chromium, with axe-core; pictures in target/page
	scripts/need.sh page
	tests/e2e/page/check.sh "$(TARGET)/page"
	scripts/ran.sh cargo test --locked --test e2e page:: -- --ignored --test-threads 2

.PHONY: bugs
bugs: need-cargo need-git ## Seeded bugs in a copy of the tree; a test must detect each of them
	scripts/ran.sh scripts/seeded.sh cargo test --locked --lib --test it --test sim seeded:: -- --include-ignored

.PHONY: fuzz
fuzz: need-cargo ## Coverage-guided fuzzing, SECONDS=… for each target; only some targets: ON="api lock" (needs g++)
	tests/fuzz/guided/run.sh $(or $(SECONDS),120) $(ON)

.PHONY: porcupine
porcupine: need-go ## Builds the linearizability checker, after its tests show that it rejects wrong histories
	cd tests/porcupine && GOWORK=off go vet -mod=readonly ./... && GOWORK=off go test -mod=readonly ./...
	cd tests/porcupine && CGO_ENABLED=0 GOWORK=off go build -mod=readonly -buildvcs=false -trimpath \
		-ldflags "-s -w" -o "$(abspath $(TARGET))/porcupine" .

.PHONY: fences
fences: need-cargo need-go controlplane versitygw h2spec ## Fences on the real stores and in HTTP services: a stale worker, random writers with crashes, what a store may lose
	scripts/need.sh fences
	scripts/python.sh fences/s3/requirements.txt "$(TARGET)/fences/s3"
	scripts/python.sh tests/fences/envoy.txt "$(TARGET)/fences/envoy"
	cd tests/fences/controller && GOWORK=off go build -mod=readonly -buildvcs=false -o "$(abspath $(TARGET))/fences/controller" .
	scripts/need.sh clients
	tests/fences/middleware/run.sh "$(TARGET)/fences/middleware" "$(TARGET)/clients"
	scripts/ran.sh cargo test --locked --test e2e fences:: -- --ignored --skip fences::proxy::memory --test-threads 2

.PHONY: fence-memory
fence-memory: need-cargo controlplane ## The memory of `leasehold fence` with 10,000 slow clients
	scripts/ran.sh cargo test --locked --test e2e fences::proxy::memory -- --ignored --nocapture

.PHONY: migrations
migrations: need-go ## The migrations of the fences, by golang-migrate, Flyway and Alembic on the real databases (by hand)
	scripts/need.sh fences
	scripts/need.sh clients
	tests/fences/migrations.sh "$(TARGET)/fences"

.PHONY: galera
galera: ## The fence of MariaDB with two primaries, one of which lags (by hand)
	scripts/need.sh galera
	tests/fences/galera.sh

.PHONY: comparison
comparison: need-cargo controlplane bench-peers porcupine ## Compares client-go's leader election with ours under the same late answers: when did two lead?
	cargo test --locked --test comparison
	@cat "$(TARGET)/comparison/table.md"

.PHONY: alerts
alerts: promtool ## The alerts, evaluated by Prometheus' promtool: when they fire and when they do not
	"$(TARGET)/controlplane/promtool/promtool" check rules charts/leasehold/files/alerts.yaml
	"$(TARGET)/controlplane/promtool/promtool" test rules tests/alerts/alerts.test.yaml

.PHONY: chart
chart: helm ## The Helm chart without a cluster, with Helm 4 and Helm 3: lint, rendered files, rejected values
	tests/chart/check.sh

.PHONY: chart-golden
chart-golden: helm ## Rewrites tests/golden/chart from the rendered chart
	tests/chart/check.sh --regenerate

.PHONY: model
model: need-cargo ## The agent's core model-checked to completion, and negative controls: by hand, for each change of the core or the protocol
	cargo test --locked --profile model --lib agent::core::tests::model:: -- --ignored --nocapture --test-threads 1

.PHONY: sim
sim: need-cargo ## The shipped agents in 1,000 simulated worlds with faults of every kind, their core in 1,000 more, and negative controls
	LEASEHOLD_WORLDS=0..1000 scripts/ran.sh cargo test --locked --lib worlds::
	cargo test --locked --test sim -- --nocapture --test-threads 2

SEEDS ?= 100000

.PHONY: soak
soak: need-cargo ## The same simulation in new worlds; their number is SEEDS (default: 100000)
	SIM_SOAK=$(SEEDS) scripts/ran.sh cargo test --locked --profile model --test sim soak -- --nocapture --ignored

.PHONY: e2e
e2e: need-cargo controlplane helm ## Our binaries against a real etcd and kube-apiserver
	scripts/need.sh e2e
	cargo test --locked --test e2e -- --test-threads 4

.PHONY: crowd
crowd: need-cargo controlplane ## 200 agents request one lock within a second; prints what that costs
	scripts/need.sh plugin
	scripts/binary.sh leasehold $(ARCH) "$(TARGET)/crowd/leasehold"
	LEASEHOLD_OPTIMIZED="$(TARGET)/crowd/leasehold" \
		scripts/ran.sh cargo test --locked --test e2e crowd:: -- --ignored --nocapture --test-threads 1

.PHONY: elections
elections: need-cargo controlplane ## Five candidates during three minutes of failures: never two leaders
	scripts/ran.sh cargo test --locked --test e2e election::storm -- --ignored --nocapture

.PHONY: upgrade
upgrade: need-cargo controlplane ## An older version together with this one at each step of an upgrade, OLDER=REVISION of the git history
	scripts/older.sh "$(OLDER)" "$(TARGET)/older"
	LEASEHOLD_OLDER="$(TARGET)/older/leasehold" scripts/ran.sh cargo test --locked --test e2e upgrade:: -- --ignored --nocapture

.PHONY: fault
fault: need-cargo need-git controlplane porcupine ## Ten minutes of faults on a real control plane, then checks of the apps' histories
	scripts/need.sh fault
	cargo test --locked --test fault -- --test-threads 1
	@# This also builds the binary. Cargo reuses what `make bugs` has built.
	scripts/seeded.sh cargo test --locked --no-run --test sim
	LEASEHOLD_SEEDED="$(TARGET)/seeded/debug/leasehold" scripts/ran.sh cargo test --locked --test fault impatient_operator -- --ignored
	scripts/ran.sh cargo test --locked --test fault run:: -- --ignored --nocapture

.PHONY: fault-short
fault-short: need-cargo controlplane porcupine ## One minute of faults
	scripts/need.sh fault
	FAULT_MINUTES=1 scripts/ran.sh cargo test --locked --test fault run:: -- --ignored --nocapture

.PHONY: floor
floor: need-cargo controlplane-floor helm ## The end-to-end tests for the oldest supported Kubernetes
	scripts/ran.sh cargo test --locked --test e2e _promised_floor -- --ignored --test-threads 4

.PHONY: node-e2e
node-e2e: need-cargo controlplane-node image ## Our image on a real node with kubelet and containerd (needs root)
	tests/node/app-image.sh "$(TARGET)/node/app.tar"
	cargo test --locked --no-run --test node
	tests/node/all.sh

.PHONY: node
node: need-cargo controlplane-node image ## Makes this machine a real node to try the chart on, until Ctrl-C (needs root)
	tests/node/app-image.sh "$(TARGET)/node/app.tar"
	cargo test --locked --no-run --test node
	exec tests/node/enter.sh cargo test --offline --locked --test node -- --nocapture --ignored --exact stay::stay

.PHONY: no-node
no-node: # Runs instead of node-e2e
	@echo "node-e2e was not run: it needs root (sudo make node-e2e)"

.PHONY: image
image: need-cargo ## The container image, its binary and its SBOM, under target/image (needs buildah)
	scripts/need.sh image
	scripts/image.sh

.PHONY: plugin
plugin: need-cargo ## The kubectl plugin, a static binary in target/plugin (docs/kubectl.md)
	scripts/need.sh plugin
	scripts/binary.sh kubectl-leasehold $(ARCH) "$(TARGET)/plugin/kubectl-leasehold"

.PHONY: release
release: need-cargo helm ## Builds all files of a release in target/dist: binaries, image and SBOM for amd64 and arm64, chart, plain YAML, checksums
	scripts/need.sh release
	scripts/release.sh

.PHONY: run
run: need-cargo ## Locks without a cluster, to try curl on; flags in ARGS (docs/dev.md)
	cargo build --locked
	@exec "$(TARGET)/debug/leasehold" dev $(ARGS)

.PHONY: demo
demo: need-cargo controlplane ## A control plane and two sidecars to try curl and kubectl on
	cargo build --locked
	cargo run --locked --quiet --example demo -- "$(TARGET)/debug/leasehold"

.PHONY: bench
bench: need-cargo controlplane bench-peers $(if $(filter clients,$(or $(ARGS),clients)),bench-clients) ## Medians and ratios in one run; only some parts: ARGS="calls peers exec clients many-locks many-pods operator"
	cargo build --locked --release
	cargo run --locked --release --quiet --example bench -- "$(TARGET)/release/leasehold" \
		"$(TARGET)/bench/leaderelection" "$(TARGET)/bench/etcdmutex" "$(TARGET)/clients" $(ARGS)

.PHONY: bench-fences
bench-fences: need-cargo ## What the fence of PostgreSQL costs, by pgbench, and what `leasehold fence` costs, beside nginx and HAProxy
	scripts/need.sh bench-fences
	bench/postgresql.sh
	cargo build --locked --release --bin leasehold
	bench/proxy.sh "$(TARGET)/release/leasehold"

.PHONY: bench-peers
bench-peers: need-go # The other locks of the bench; each is a separate Go module that pins its versions
	mkdir -p "$(TARGET)/bench"
	for peer in leaderelection etcdmutex; do (cd "bench/$$peer" && CGO_ENABLED=0 GOWORK=off \
		go build -mod=readonly -buildvcs=false -trimpath -ldflags "-s -w" \
		-o "$(abspath $(TARGET))/bench/$$peer" .); done

.PHONY: bench-clients
bench-clients: need-cargo need-go # Drivers as a user's app would be built: Go without the race detector, Rust optimized
	scripts/need.sh clients
	for client in go java python typescript; do clients/$$client/check.sh "$(TARGET)/clients/$$client"; done
	cd clients/go && GOWORK=off go build -mod=readonly -buildvcs=false -o "$(abspath $(TARGET))/clients/go/plain" ./conformance
	cargo build --locked --release -p leasehold-client --example conformance
	mkdir -p "$(TARGET)/clients/rust"
	cp "$(TARGET)/release/examples/conformance" "$(TARGET)/clients/rust/optimized"

.PHONY: controlplane
controlplane: ## Builds etcd, kube-apiserver, kubectl and kube-controller-manager for the tests, once, under target/
	tests/controlplane/build.sh etcd v1.36

.PHONY: controlplane-floor
controlplane-floor: ## The same for the oldest supported Kubernetes
	tests/controlplane/build.sh v1.33

.PHONY: controlplane-node
controlplane-node: ## The same, and the programs that make this machine a node: kubelet, containerd, runc, CNI plugins
	scripts/need.sh node
	tests/controlplane/build.sh etcd v1.36 v1.36-node containerd runc cni helm

.PHONY: promtool
promtool: # Prometheus' rule checker, built once, under target/
	tests/controlplane/build.sh promtool

.PHONY: versitygw
versitygw: # An S3-compatible server, built once, under target/
	tests/controlplane/build.sh versitygw

.PHONY: h2spec
h2spec: # A test suite of HTTP/2 servers, built once, under target/
	tests/controlplane/build.sh h2spec

.PHONY: helm
helm: # Helm 4 and Helm 3, built once, under target/
	tests/controlplane/build.sh helm helm3

.PHONY: generate
generate: need-cargo ## Rewrites generated files: crds/, docs/openapi.json, goldens of the webhook, the messages and the kubectl plugin, a table in docs/
	fences/generate.sh
	LEASEHOLD_REGENERATE=1 cargo test --locked --quiet --test it -- drift kubectl::

.PHONY: deny
deny: need-cargo ## Licences, advisories and duplicates of the dependencies (needs cargo-deny)
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is missing: cargo install --locked cargo-deny" >&2; exit 1; }
	cargo deny check

.PHONY: need-go
need-go:
	@command -v go >/dev/null || { echo "go is missing: install Go 1.26 or later (https://go.dev/dl)" >&2; exit 1; }

.PHONY: need-jq
need-jq: # The documentation's commands use it.
	@for need in jq curl; do command -v $$need >/dev/null || { echo "$$need is missing: apt-get install $$need" >&2; exit 1; }; done

.PHONY: need-git
need-git: # scripts/seeded.sh uses it.
	@command -v git >/dev/null || { echo "git is missing: apt-get install git" >&2; exit 1; }

.PHONY: need-cargo
need-cargo:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust (https://rustup.rs)" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "a C compiler is missing: apt-get install gcc" >&2; exit 1; }
