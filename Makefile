# Two commands do everything, on a fresh Debian or Ubuntu machine too (as root): make run, make test.
SHELL := /bin/bash
.DEFAULT_GOAL := run
.PHONY: run exec test fuzz soak bench images clean

run: ## the agent in a playground with pods, a service, a policy; ONCE=1 checks and leaves, KUBERNETES=1 with a real API server, NODES=3 makes several nodes, by ROUTING=tunnel or native, HOST=1 runs on the host
	@KUBERNETES="$(KUBERNETES)" tools/setup run
	@tools/build $(if $(HOST),release,quick)
	@ONCE="$(ONCE)" HOST="$(HOST)" KUBERNETES="$(KUBERNETES)" NODES="$(NODES)" ROUTING="$(ROUTING)" tools/playground run

exec: ## CMD='apiary status' inside the running playground; PLAYGROUND=n which one, if several run
	@PLAYGROUND="$(PLAYGROUND)" CMD="$(CMD)" tools/playground exec

test: ## everything that .ci/run checks; FULL=1 all cases of exhaustive tests, KERNEL=5.10 (or 6.1) also on that kernel, emulated
	@FULL="$(FULL)" KERNEL="$(KERNEL)" tools/setup test
	@FULL="$(FULL)" KERNEL="$(KERNEL)" tools/test

fuzz: ## looks for inputs that break a parser; RUNS=100000 of each target, TARGETS='cni config'
	@tools/setup fuzz
	@RUNS="$(RUNS)" SEED="$(SEED)" tools/fuzz $(TARGETS)

soak: ## pods come and go under kills, nothing may leak or grow; COUNT=10000 cycles, SEED=n to repeat a run
	@tools/setup soak
	@tools/build
	@COUNT="$(COUNT)" SEED="$(SEED)" tools/soak

bench: ## every benchmark: a table and target/bench/summary.tsv
	@tools/setup bench
	@tools/build
	@tools/bench

images: ## container images for the chart, and one for Cilium's own, as archives in target/images
	@tools/setup images
	@tools/build
	@tools/images

clean:
	cargo clean
