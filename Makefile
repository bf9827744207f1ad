# Each target installs what it needs on a fresh Debian 12, Debian 13 or Ubuntu, and says what it is doing.
# `make` alone lists them.

SHELL := /bin/bash
PYTHON := target/venv/bin/python
# Where cargo builds: programs are found there whatever CARGO_TARGET_DIR says.
BUILT := $(abspath $(or $(CARGO_TARGET_DIR),target))
LEARN := PYTHONPATH=python target/venv-learn/bin/python -m thermocline
THERMOLAB := cd lab && ../$(PYTHON) -m thermolab
BITBRAINS ?=
SCENARIO ?=
KERNEL ?=
TRACE ?=
SIMULATE ?=
ALL ?=
BASE ?=
PAIRS ?=
TARGET ?=
SEEDS ?= 400
SECONDS ?= 840
ARENA ?=

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: demo
demo: toolchain lab-setup-idle venv ## the main job in a guest, with figures and a report; about 10 minutes once built
	$(PYTHON) lab/demo.py

.PHONY: test
test: toolchain venv lab-setup-stock ## everything that must pass: unit tests, harness tests, the main job on a stock kernel
	cargo test --workspace --locked --exclude thermocline-bench
	cd lab && ../$(PYTHON) -m pytest -q
	cd python && THERMOCLINE=$(BUILT)/debug/thermocline ../$(PYTHON) -m pytest -q
	cd bench && ../$(PYTHON) -m pytest -q emulate
	$(THERMOLAB) run smoke --kernel 6.12

.PHONY: test-trace
test-trace: toolchain ## traces as others read them: pyarrow, DuckDB, Polars (0.5 GB of wheels); the queries of the manual
	cargo build --locked -p thermocline
	@tools/venv target/venv-trace lab/traces/requirements.txt
	THERMOCLINE=$(BUILT)/debug/thermocline target/venv-trace/bin/python -m pytest -q lab/traces

.PHONY: test-trace-spark
test-trace-spark: toolchain ## the same by Spark (0.5 GB of jars; needs Java)
	cargo build --locked -p thermocline
	@tools/venv target/venv-spark lab/traces/requirements-spark.txt
	THERMOCLINE=$(BUILT)/debug/thermocline target/venv-spark/bin/python -m pytest -q lab/traces/test_spark.py

.PHONY: test-s3
test-s3: toolchain ## traces and rollouts in a real object store, with outages; builds its server, some minutes at first
	@command -v target/tools/bin/s3s-fs >/dev/null || cargo install s3s-fs --version 0.14.1 --locked --features binary --root target/tools
	S3_SERVER=$(CURDIR)/target/tools/bin/s3s-fs cargo test --locked -p thermocline-store -p thermocline-trace -p thermocline-rollout --features s3,thermocline-store/testing --test s3

.PHONY: test-prometheus
test-prometheus: toolchain ## queries of a rollout's guards to a real Prometheus, which is unpacked and not installed
	@command -v target/tools/prometheus/usr/bin/prometheus >/dev/null || tools/prometheus target/tools/prometheus
	PROMETHEUS=$(CURDIR)/target/tools/prometheus/usr/bin/prometheus cargo test --locked -p thermocline-rollout --test prometheus -- --ignored

.PHONY: test-metrics
test-metrics: toolchain venv ## alert rules, dashboard and the agent's metrics in a real Prometheus, which is unpacked and not installed; target/metrics/result.json
	@command -v target/tools/prometheus/usr/bin/promtool >/dev/null || tools/prometheus target/tools/prometheus
	mkdir -p target/metrics
	METRICS_SAMPLE=$(CURDIR)/target/metrics/sample.prom cargo test --locked -p thermocline-agent --lib reference_page
	cd lab && PROMETHEUS=$(CURDIR)/target/tools/prometheus/usr/bin METRICS=$(CURDIR)/target/metrics ../$(PYTHON) -m pytest -q metrics

.PHONY: console-page
console-page: ## the page of `thermocline console`, built from web/src into web/dist, which is committed; needs Node.js
	cd web && npm ci --silent --no-audit --no-fund && npm run --silent check && npm run --silent build

.PHONY: test-console
test-console: toolchain ## the console in Chromium: flows, empty states, errors, 10,000 jobs and 30 days, a pool of 1,000 hosts; needs Node.js; target/console
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] || root=sudo; $$root apt-get install -qq -y --no-install-recommends chromium; }
	cargo build --locked -p thermocline
	cd web && npm ci --silent --no-audit --no-fund && npm run --silent check
	rm -rf target/console/fleet target/console/rollouts && mkdir -p target/console/fleet target/console/rollouts
	CONSOLE_FLEET=$(CURDIR)/target/console/fleet CONSOLE_ROLLOUTS=$(CURDIR)/target/console/rollouts cargo test --locked -p thermocline \
		--test console -- --ignored
	cd web && THERMOCLINE=$(BUILT)/debug/thermocline CONSOLE_FLEET=$(CURDIR)/target/console/fleet \
		CONSOLE_ROLLOUTS=$(CURDIR)/target/console/rollouts node --test --test-concurrency=1 test/*.test.mjs

.PHONY: test-cli
test-cli: toolchain venv ## every command with missing, empty and garbage files, a full disk, a closed pipe, an interrupt
	cargo build --locked -p thermocline
	cd lab && THERMOCLINE=$(BUILT)/debug/thermocline ../$(PYTHON) -m pytest -q cli

.PHONY: test-helm
test-helm: toolchain ## the Helm chart: linted, rendered, checked against Kubernetes' schemas and by the program; wrong values refused; needs Go; target/helm/result.json
	@command -v go >/dev/null || { echo "test-helm builds helm and kubeconform: install Go 1.24 or later" >&2; exit 1; }
	@test -x target/tools/bin/helm || GOBIN=$(CURDIR)/target/tools/bin go install helm.sh/helm/v3/cmd/helm@v3.22.0
	@test -x target/tools/bin/kubeconform || GOBIN=$(CURDIR)/target/tools/bin go install github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
	cargo build --locked -p thermocline
	@tools/venv target/venv-helm deploy/helm/requirements.txt
	target/venv-helm/bin/python tools/helm-check target/tools/bin/helm target/tools/bin/kubeconform $(BUILT)/debug/thermocline target/helm

.PHONY: test-forms
test-forms: toolchain ## one fleet in every form of its traces: the model's answer is the same, byte for byte; target/forms/result.json
	mkdir -p target/forms
	FORMS_RESULT=$(CURDIR)/target/forms/result.json cargo test --locked -p thermocline --test forms -- --nocapture

.PHONY: test-fleet
test-fleet: toolchain ## a thousand agents follow a rollout from stage to stage; some minutes
	cargo test --release --locked -p thermocline --test thousand -- --ignored --nocapture

.PHONY: test-sqlite
test-sqlite: toolchain ## importing AzureTracesForPacking2020; needs libsqlite3-dev
	cargo test --locked -p thermocline-vmtrace --features sqlite packing

.PHONY: test-tune
test-tune: toolchain venv-tune ## the tuner with every designer that it knows (0.3 GB of wheels)
	cargo build --locked -p thermocline
	cd python && THERMOCLINE=$(BUILT)/debug/thermocline ../target/venv-tune/bin/python -m pytest -q

.PHONY: test-learn
test-learn: toolchain venv-learn ## the pool's predictions: trained, written as ONNX, served by the program, and the loop of a night (0.7 GB of wheels)
	cargo build --locked -p thermocline
	cd python && THERMOCLINE=$(BUILT)/debug/thermocline ../target/venv-learn/bin/python -m pytest -q tests/test_learn.py tests/test_learn_parts.py tests/test_learn_curves.py tests/test_learn_conformal.py \
		tests/test_learn_reports.py tests/test_learn_windows.py
	THERMOCLINE_LEARN=$(CURDIR)/target/venv-learn/bin/python cargo test --locked -p thermocline --test learns -- --nocapture

.PHONY: test-pool-faults
test-pool-faults: toolchain ## the pool manager killed fifty times under load, and a full disk under its ledger (as root); a minute
	cargo test --locked -p thermocline-manager --test faults -- --include-ignored --nocapture --test-threads 1

.PHONY: test-pool-group
test-pool-group: toolchain ## a group of three pool managers, for 1,000 hosts, whose leader is killed fifty times, stopped and emptied; 15 minutes on two cores; target/pool-group/result.json
	mkdir -p target/pool-group
	POOL_GROUP_RESULT=$(CURDIR)/target/pool-group/result.json cargo test --locked -p thermocline --test pool_group -- --include-ignored --nocapture --test-threads 1

.PHONY: test-ledger-lies
test-ledger-lies: toolchain ## the pool manager with lost, restored, copied and damaged ledgers, 1,212 of them with a bit flipped; 2 minutes; target/ledger-lies/result.json
	mkdir -p target/ledger-lies
	LEDGER_LIES_RESULT=$(CURDIR)/target/ledger-lies/result.json cargo test --locked -p thermocline-manager --test ledger_lies -- --nocapture

.PHONY: test-control-plane
test-control-plane: toolchain ## 10,000 VMs on 1,000 hosts, placed live as simulated, by a scheduler that is killed fifty times; minutes; target/control-plane/result.json
	mkdir -p target/control-plane
	CONTROL_PLANE_RESULT=$(CURDIR)/target/control-plane/result.json cargo test --locked -p thermocline --test control_plane -- --ignored --nocapture

.PHONY: test-manager-siege
test-manager-siege: toolchain ## 1,024 hosts keep their leases while 10,000 clients without a certificate connect; a minute; target/siege/result.json
	mkdir -p target/siege
	SIEGE_RESULT=$(CURDIR)/target/siege/result.json cargo test --release --locked -p thermocline-manager --test siege -- --ignored --nocapture

.PHONY: test-cxl
test-cxl: toolchain venv lab-setup-stock ## a CXL device becomes pool memory as `pool doctor` says, in a guest of a newer QEMU (fetched, 50 MB); minutes
	$(THERMOLAB) run pool_cxl

.PHONY: test-stranger
test-stranger: toolchain ## a client in Python, generated from docs/pool-api.json, runs a pool slice's whole cycle
	cargo build --locked -p thermocline
	@tools/venv target/venv-stranger lab/stranger/requirements.txt
	rm -rf target/stranger && mkdir -p target/stranger
	cd target/stranger && ../venv-stranger/bin/openapi-python-client generate --path ../../docs/pool-api.json --meta none --output-path pool_client
	THERMOCLINE=$(BUILT)/debug/thermocline PYTHONPATH=target/stranger target/venv-stranger/bin/python -m pytest -q lab/stranger

.PHONY: test-libvirt
test-libvirt: toolchain venv lab-setup-stock ## a pool's guest by libvirt, as root: installs it, runs a libvirtd of its own beside any other
	tools/libvirt
	$(THERMOLAB) run pool_libvirt --kernel 6.12

.PHONY: test-schedules
test-schedules: toolchain ## threads that share a lock, in thousands of orders each (shuttle); minutes, in target/schedules
	RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/schedules cargo test --locked -p thermocline-pool-host schedules

.PHONY: simulate
simulate: toolchain ## the agent on a simulated kernel, with faults from SEEDS= seeds; some minutes; target/simulate/result.json
	mkdir -p target/simulate
	cargo run --locked -p thermocline-sim --bin thermocline-sim -- --seeds $(SEEDS) --result target/simulate/result.json

.PHONY: fuzz
fuzz: toolchain ## everything that reads bytes from outside, by libFuzzer: SECONDS= for all targets together, TARGET= for some; target/fuzz/result.json
	tools/fuzz $(SECONDS) $(TARGET)

.PHONY: attack-local
attack-local: toolchain venv lab-setup-stock ## a user without privileges against the agent's listener, locks, files and socket, in a guest; 2 minutes
	$(THERMOLAB) run attack_local --kernel 6.12

.PHONY: soak
soak: toolchain venv lab-setup-stock ## jobs whose every page is checked while faults happen, in a guest: THERMOCLINE_SOAK_SECONDS= (600), KERNEL=; target/lab/soak/result.json
	$(THERMOLAB) run soak --kernel $(or $(KERNEL),6.12)

.PHONY: test-confined
test-confined: toolchain venv lab-setup-stock ## user, capabilities and seccomp of every process, and a dead thread of each service, in a guest with systemd (an image is made); minutes
	$(THERMOLAB) run confined --kernel 6.12

.PHONY: test-libvirt-repair
test-libvirt-repair: toolchain venv lab-setup-stock ## a guest by libvirt is repaired on a host of two nodes, which is a guest itself (an image of 0.2 GB is made); minutes
	$(THERMOLAB) run pool_migrate_pages --kernel 6.12

.PHONY: test-ray
test-ray: toolchain ## the model on a local Ray cluster, one of whose workers is killed (0.5 GB of wheels)
	cargo build --locked -p thermocline
	@tools/venv target/venv-ray python/requirements-ray.txt
	cd python && THERMOCLINE=$(BUILT)/debug/thermocline ../target/venv-ray/bin/python -m pytest -q tests/test_cluster.py tests/test_ray.py

.PHONY: lint
lint: toolchain venv ## formatting, clippy, ruff, mypy, the project's vocabulary
	tools/vocabulary
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cd lab && ../target/venv/bin/ruff format --check . && ../target/venv/bin/ruff check . && ../target/venv/bin/mypy
	cd python && ../target/venv/bin/ruff format --check . && ../target/venv/bin/ruff check . && ../target/venv/bin/mypy
	target/venv/bin/ruff format --config lab/pyproject.toml --check bench && target/venv/bin/ruff check --config lab/pyproject.toml bench
	cd bench && ../target/venv/bin/mypy --strict emulate

.PHONY: arena
arena: toolchain venv lab-setup-stock ## Thermocline beside its peers on ten programs in guests, at equal time lost: target/bench/arena.json, arena.html; 3 hours (ARENA="--mix five")
	cd lab && ../$(PYTHON) -m arena $(ARENA)

.PHONY: arena-simulate
arena-simulate: toolchain ## control laws on generated access traces, with our constants varied: target/bench/arena-simulated.json, bit for bit the same; 5 minutes
	cargo build --locked -p thermocline
	mkdir -p target/bench
	$(BUILT)/debug/thermocline arena --sensitivity --format json > target/bench/arena-simulated.json.new
	mv target/bench/arena-simulated.json.new target/bench/arena-simulated.json

.PHONY: bench
bench: toolchain ## native benchmarks; figures in target/bench/native.json
	cargo run --release --locked -p thermocline-bench -- --out target/bench/native.json

.PHONY: ab
ab: toolchain ## the native benchmarks of this tree beside those of BASE=rev, in turn, as ratios with intervals; target/bench/ab.json
	@test -n "$(BASE)" || { echo "name the revision to compare with: make ab BASE=v0.1.0" >&2; exit 1; }
	tools/ab $(BASE) $(PAIRS)

.PHONY: bench-model
bench-model: toolchain ## the fleet model against reading the same memory, and numpy, numba and DuckDB; target/bench/model.json
	cargo run --release --locked -p thermocline-bench -- --model --runs 7 --out target/bench/model.json
	cargo build --release --locked -p thermocline
	@tools/venv target/venv-peers bench/peers/requirements.txt
	cd bench && ../target/venv-peers/bin/python -m peers --program $(BUILT)/release/thermocline --into ../target/bench/model.json

.PHONY: bench-pool
bench-pool: toolchain ## the pooling simulator against its queue alone, the pool manager under load; figures in target/bench/pool.json
	cargo run --release --locked -p thermocline-bench -- --pool --runs 7 --out target/bench/pool.json

# The bar of the objective is 1000000 job-days: 40 minutes on two busy cores.
JOB_DAYS ?= 20000

.PHONY: simulate-objective
simulate-objective: toolchain ## periods over the objective from a job's first minute on: JOB_DAYS= of generated jobs, the golden journal, TRACE=FILE; target/simulate/objective.json
	cargo run --release --locked -p thermocline-bench -- --objective $(JOB_DAYS) $(if $(TRACE),--trace $(TRACE)) \
		--journal crates/node/agent/tests/journal-6.12-idle.jsonl --out target/simulate/objective.json

.PHONY: reproduce
reproduce: toolchain venv ## figures of the papers, measured here, each with a verdict: under an hour, or ALL=1 for hours; target/reproduce/report.md
	cargo build --release --locked -p thermocline
	$(BUILT)/release/thermocline reproduce $(if $(ALL),,--quick)

.PHONY: reproduce-tuner
reproduce-tuner: toolchain venv-tune ## hand-tuned against autotuned on generated fleets; figures in target/reproduce/tuner.json
	cargo build --release --locked -p thermocline
	PYTHONPATH=python target/venv-tune/bin/python -m thermocline.report.tuner --program $(BUILT)/release/thermocline

.PHONY: reproduce-predictions
reproduce-predictions: toolchain venv-learn ## untouched memory of real VMs, predicted each night: make reproduce-predictions BITBRAINS=DIR with months as .parquet; target/reproduce/predictions.json
	@test -n "$(BITBRAINS)" || { echo "name a directory with months of the Bitbrains trace: make reproduce-predictions BITBRAINS=DIR" >&2; exit 1; }
	$(LEARN).report.predictions --bitbrains $(BITBRAINS)

.PHONY: reproduce-figures
reproduce-figures: toolchain venv-tune ## coverage over time, by machine and by job, drawn; after reproduce-tuner
	cargo build --release --locked -p thermocline
	PYTHONPATH=python target/venv-tune/bin/python -m thermocline.report.figures --program $(BUILT)/release/thermocline

.PHONY: reproduce-pond-pool
reproduce-pond-pool: toolchain venv-tune ## Pond's figures 3 and 21 on a VM trace: make reproduce-pond-pool TRACE=FILE [SIMULATE="--clusters 100"]; target/reproduce/pond.json
	@test -n "$(TRACE)" || { echo "name a VM trace of 'thermocline pool import' or 'generate': make reproduce-pond-pool TRACE=vms.parquet" >&2; exit 1; }
	cargo build --release --locked -p thermocline
	PYTHONPATH=python target/venv-tune/bin/python -m thermocline.report.pooling --program $(BUILT)/release/thermocline --trace $(TRACE) --plots -- $(SIMULATE)

POND := target/reproduce/pond
VMS ?= 100000
CLUSTERS ?= 10
# The last three weeks of 75 days are those that trained models are simulated on.
FIRST_DAY ?= 54

.PHONY: reproduce-pond
reproduce-pond: toolchain venv-learn ## Pond figures 2, 3 and 17 to 21 on generated VMs (VMS=, CLUSTERS=); BITBRAINS=FILE.parquet adds real memory use; target/reproduce/pond.json, and drawn
	cargo build --release --locked -p thermocline
	rm -rf $(POND)
	mkdir -p $(POND)
	$(BUILT)/release/thermocline pool generate --vms $(VMS) --clusters $(CLUSTERS) --out $(POND)/vms.parquet
	$(BUILT)/release/thermocline pool stranding --trace $(POND)/vms.parquet --format json > $(POND)/stranding.json
	$(LEARN).report.stranding --input $(POND)/stranding.json --into target/reproduce/pond.json --out target/reproduce/figures/pond2.svg
	$(LEARN).report.pond $(if $(BITBRAINS),--bitbrains $(BITBRAINS))
	$(LEARN).learn generate workloads --out $(POND)/workloads.jsonl
	$(LEARN).learn generate workloads --count 5000 --seed 2 --out $(POND)/counters.jsonl
	for latency in 182 222; do $(LEARN).learn train insensitive --samples $(POND)/workloads.jsonl --latency $$latency% \
		--out $(POND)/models/insensitive-$$latency.onnx || exit 1; done
	$(LEARN).learn train nights --trace $(POND)/vms.parquet --first-day $(FIRST_DAY) --out $(POND)/models
	$(LEARN).report.pooling --program $(BUILT)/release/thermocline --trace $(POND)/vms.parquet \
		--models $(POND)/models --counters $(POND)/counters.jsonl --plots
	$(LEARN).report.savings --program $(BUILT)/release/thermocline --sensitivity-seeds 0

.PHONY: reproduce-pond-promises
reproduce-pond-promises: toolchain venv-learn ## both models by margin (1 to 10 %) and share of VMs within it (90 to 99.9 %), verified on held-out days and workloads; target/reproduce/pond.json, and drawn
	$(LEARN).report.promises $(PROMISES)

.PHONY: reproduce-pond-shifts
reproduce-pond-shifts: toolchain venv-learn ## Pond figure 20 over 110 days on which customers change; target/reproduce/pond.json, and drawn
	$(LEARN).report.shifts $(SHIFTS)

.PHONY: reproduce-pond-savings
reproduce-pond-savings: toolchain venv ## Pond figure 21 with intervals over ten generated traces, and what it depends on; 10 minutes for each (SAVINGS="--seeds 20 --clusters 30" for more VMs); target/reproduce/pond.json
	cargo build --release --locked -p thermocline
	PYTHONPATH=python target/venv/bin/python -m thermocline.report.savings --program $(BUILT)/release/thermocline $(SAVINGS)

.PHONY: reproduce-pond-models
reproduce-pond-models: toolchain venv-learn ## Pond figure 21 by models trained every night, with intervals over ten traces (SAVINGS="--seeds 3" for fewer); target/reproduce/pond.json
	cargo build --release --locked -p thermocline
	$(LEARN).report.trained --program $(BUILT)/release/thermocline $(SAVINGS)

.PHONY: reproduce-pond-faults
reproduce-pond-faults: toolchain venv ## Pond finding 10 with stuck slices and small buffers, and the VMs that a failed device takes along; target/reproduce/pond.json
	cargo build --release --locked -p thermocline
	PYTHONPATH=python target/venv/bin/python -m thermocline.report.faults --program $(BUILT)/release/thermocline

.PHONY: reproduce-windows
reproduce-windows: venv-learn ## memory promised by day and by window of a day (Coach) on real VMs: make reproduce-windows BITBRAINS=FILE.parquet; target/reproduce/pond.json
	@test -n "$(BITBRAINS)" || { echo "name the trace of Bitbrains: make reproduce-windows BITBRAINS=bitbrains_rnd_2013-07.parquet" >&2; exit 1; }
	$(LEARN).report.windows --bitbrains $(BITBRAINS)

.PHONY: reproduce-stranding
reproduce-stranding: toolchain venv-tune ## Pond figure 2 on a generated trace of a million VMs, or TRACE=FILE; target/reproduce/stranding.json, and drawn
	cargo build --release --locked -p thermocline
	mkdir -p target/reproduce
	test -n "$(TRACE)" || $(BUILT)/release/thermocline pool generate --out target/reproduce/vms.parquet
	$(BUILT)/release/thermocline pool stranding --trace $(or $(TRACE),target/reproduce/vms.parquet) --format json > target/reproduce/stranding.json
	PYTHONPATH=python target/venv-tune/bin/python -m thermocline.report.stranding --input target/reproduce/stranding.json

.PHONY: bench-emulate
bench-emulate: toolchain ## Redis, memcached, TPC-B and analytics on emulated slow memory, as root; an hour; target/bench/emulate.json
	cargo build --release --locked -p thermocline-emulator -p thermocline-lab-guest
	cd bench && python3 -m emulate --emulator $(BUILT)/release/thermocline-emulator --load $(BUILT)/release/labguest \
		--out ../target/bench/emulate.json

.PHONY: bench-resolution
bench-resolution: toolchain ## what entries of five periods hide from the model; figures in target/bench/resolution.json
	cargo run --release --locked -p thermocline-bench -- --resolution crates/node/agent/tests/journal-6.12-idle.jsonl --out target/bench/resolution.json

.PHONY: package
package: toolchain venv ## a release: Debian and RPM packages, an archive, a wheel of the Python part, SBOM and checksums in target/package; the program is static, with S3
	CARGO_TARGET_DIR=$(CURDIR)/target/lab-build-s3 RUSTFLAGS="-C target-feature=+crt-static" \
		cargo build --release --locked --target x86_64-unknown-linux-gnu --package thermocline --features thermocline/s3
	tools/package target/lab-build-s3/x86_64-unknown-linux-gnu/release/thermocline

.PHONY: audit
audit: toolchain venv ## licences, sources and doubles of all packages (cargo-deny; some minutes to build at first), known vulnerabilities where the databases are available
	tools/audit

.PHONY: docs
docs: toolchain ## the documentation as a site in target/docs/site: links checked, examples run; builds mdBook at first, some minutes
	@command -v target/tools/bin/mdbook >/dev/null || cargo install mdbook --version 0.4.52 --locked --no-default-features --features search --root target/tools
	cargo build --locked -p thermocline
	tools/docs target/tools/bin/mdbook $(BUILT)/debug/thermocline target/docs

.PHONY: lab
lab: toolchain venv ## list the lab's scenarios, or run one: make lab SCENARIO=redis_cold_age [KERNEL=6.12|7.2|6.12-idle|all]
ifeq ($(SCENARIO),)
	@$(THERMOLAB) list
else
	lab/setup
	$(THERMOLAB) run $(SCENARIO) $(if $(KERNEL),--kernel $(KERNEL))
endif

.PHONY: lab-setup-stock
lab-setup-stock:
	lab/setup 6.12

.PHONY: lab-setup-idle
lab-setup-idle:
	lab/setup 6.12-idle

.PHONY: toolchain
toolchain:
	@tools/toolchain

.PHONY: venv-tune
venv-tune:
	@tools/venv target/venv-tune python/requirements.txt

.PHONY: venv-learn
venv-learn:
	@tools/venv target/venv-learn python/requirements-learn.txt

.PHONY: venv
venv: target/venv/.made

target/venv/.made: lab/requirements.txt
	@echo "making a Python environment in target/venv"
	@tools/venv target/venv lab/requirements.txt
	@touch $@
