# Each target installs what it needs on a fresh Debian 12, Debian 13 or Ubuntu, and says what it is doing.
# `make` alone lists them.

SHELL := /bin/bash
PYTHON := target/venv/bin/python
THERMOLAB := cd lab && ../$(PYTHON) -m thermolab
SCENARIO ?=
KERNEL ?=

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: demo
demo: toolchain lab-setup-idle venv ## the main job in a guest, with figures and a report; under 5 minutes once built
	$(PYTHON) lab/demo.py

.PHONY: test
test: toolchain venv lab-setup-stock ## everything that must pass: unit tests, harness tests, the main job on a stock kernel
	cargo test --workspace --locked --exclude thermocline-bench
	cd lab && ../$(PYTHON) -m pytest -q
	$(THERMOLAB) run smoke --kernel 6.12

.PHONY: lint
lint: toolchain venv ## formatting, clippy, ruff, mypy
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cd lab && ../target/venv/bin/ruff format --check . && ../target/venv/bin/ruff check . && ../target/venv/bin/mypy

.PHONY: bench
bench: toolchain ## native benchmarks; figures in target/bench/native.json
	cargo run --release --locked -p thermocline-bench -- --out target/bench/native.json

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

.PHONY: venv
venv: target/venv/.made

target/venv/.made: lab/requirements.txt
	@echo "making a Python environment in target/venv"
	@tools/venv target/venv lab/requirements.txt
	@touch $@
