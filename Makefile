# SPDX-License-Identifier: MIT
# percpu.h - `make help` lists the targets. CC, CXX, CFLAGS, CXXFLAGS, LDFLAGS are the user's.

version_part = $(shell awk '$$2 == "PERCPU_VERSION_$(1)" { print $$3 }' percpu.h)
VERSION := $(call version_part,MAJOR).$(call version_part,MINOR).$(call version_part,PATCH)
PREFIX ?= /usr/local
INCLUDEDIR ?= $(PREFIX)/include
# Headers only, so the package files do not depend on the architecture.
PKGCONFIGDIR ?= $(PREFIX)/share/pkgconfig
CMAKEDIR ?= $(PREFIX)/share/cmake/percpu
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
B := build
HEADERS := percpu.h rseq_abi.h
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wconversion -Wcast-qual
TEST_CFLAGS := -O2 -g -I. -Itest $(WARN)

.DEFAULT_GOAL := help
# The user's compilers; make's own defaults are cc and g++.
ifeq ($(origin CC),default)
CC := gcc
endif
.PHONY: help selftest check lint install uninstall clean tests

# ---- Flavors: how tests are compiled and linked. flavor_X is the whole command line.
# A flavor whose compiler is missing is skipped, and said to be.
GLIBC_GCC ?= gcc
GLIBC_CLANG ?= clang
MUSL_GCC ?= musl-gcc
MUSL_CLANG := test/musl-clang
flavor_gcc := $(GLIBC_GCC) -std=gnu11
flavor_gcc-O0 := $(GLIBC_GCC) -std=gnu11 -O0 -fstack-protector-all
flavor_gcc-pic := $(GLIBC_GCC) -std=gnu11 -fPIC
flavor_gcc-nopie := $(GLIBC_GCC) -std=gnu11 -fno-pic -no-pie
flavor_gcc-static := $(GLIBC_GCC) -std=gnu11 -static
flavor_gcc-staticpie := $(GLIBC_GCC) -std=gnu11 -fPIE -static-pie
flavor_gcc-lto := $(GLIBC_GCC) -std=gnu11 -flto
flavor_clang := $(GLIBC_CLANG) -std=gnu11
flavor_clang-O0 := $(GLIBC_CLANG) -std=gnu11 -O0
flavor_gxx := $(CXX) -std=gnu++11 -x c++
flavor_clangxx := clang++ -std=gnu++17 -x c++ -Wno-deprecated
flavor_musl := $(MUSL_GCC) -std=gnu11
flavor_musl-pic := $(MUSL_GCC) -std=gnu11 -fPIC
flavor_musl-static := $(MUSL_GCC) -std=gnu11 -static
flavor_musl-clang := $(MUSL_CLANG) -std=gnu11
FLAVORS := gcc gcc-O0 gcc-pic gcc-nopie gcc-static gcc-staticpie gcc-lto clang clang-O0 gxx \
	clangxx musl musl-pic musl-static musl-clang
have = $(shell command -v $(firstword $(flavor_$(1))) >/dev/null 2>&1 && echo $(1))
HAVE := $(foreach f,$(FLAVORS),$(call have,$(f)))
ifeq ($(call have,musl),)
HAVE := $(filter-out musl-clang,$(HAVE))
endif

# ---- Modes: where a flavor runs, besides `plain`. tunable: glibc told not to register. enosys,
# eperm, eacces: seccomp refuses rseq.
MODES := gcc.tunable gcc-static.tunable gcc-pic.tunable clang.tunable gxx.tunable \
	gcc.enosys gcc-static.eperm clang.eacces musl.enosys musl.eperm musl-static.eacces \
	musl-clang.enosys
flavor_of = $(firstword $(subst ., ,$(1)))
RUNS := $(addsuffix .plain,$(HAVE)) \
	$(foreach m,$(MODES),$(if $(filter $(call flavor_of,$(m)),$(HAVE)),$(m)))

SH_TESTS := $(wildcard test/check_*.sh)
C_TESTS := $(patsubst test/%.c,%,$(wildcard test/test_*.c))

# ---- What runs where. A test runs in every flavor and mode, unless it is of one of these kinds.
# Memory: neither sections nor the registration matter; once for each libc and compiler.
MEMORY_TESTS := test_alloc test_memory
RUNS_MEMORY := gcc.plain gcc-O0.plain clang.plain gxx.plain musl.plain gcc.enosys
# The same with another stride.
STRIDE_TESTS := test_alloc_12 test_alloc_20
RUNS_STRIDE := gcc.plain clangxx.plain musl.plain
# Objects: C over operations, so what matters is how a compiler optimises, and each way to fall
# back.
OBJECT_TESTS := test_counters test_gauge test_freelist test_tscp test_fence
RUNS_OBJECTS := $(addsuffix .plain,gcc gcc-O0 gcc-static gcc-lto clang clang-O0 gxx clangxx musl \
	musl-static) gcc.tunable clang.eacces musl.enosys
# Registration: libcs and linking matter, optimisation does not.
REGISTRATION_TESTS := $(filter test_early test_owner test_registration test_reasons%,$(C_TESTS))
NO_REGISTRATION := gcc-O0.% gcc-lto.% clang-O0.% clangxx.%
# Sections alone: nothing to see where rseq is refused.
SECTION_TESTS := test_sections test_unwind test_owner
REFUSED := %.enosys %.eperm %.eacces
LIMITED := $(MEMORY_TESTS) $(STRIDE_TESTS) $(OBJECT_TESTS) $(REGISTRATION_TESTS) $(SECTION_TESTS)
# $(call runs,RUN): what runs there.
only_in = $(if $(filter $(1),$(2)),$(3))
not_in = $(filter-out $(if $(filter $(1),$(2)),$(3)),$(4))
runs = $(filter $(C_TESTS),$(filter-out $(LIMITED),$(C_TESTS)) \
	$(call only_in,$(RUNS_MEMORY),$(1),$(MEMORY_TESTS)) \
	$(call only_in,$(RUNS_STRIDE),$(1),$(STRIDE_TESTS)) \
	$(call only_in,$(RUNS_OBJECTS),$(1),$(OBJECT_TESTS)) \
	$(call not_in,$(NO_REGISTRATION),$(1),$(REGISTRATION_TESTS),\
		$(call not_in,$(REFUSED),$(1),$(SECTION_TESTS),\
			$(sort $(REGISTRATION_TESTS) $(SECTION_TESTS)))))
T := $(B)/t

# Options that one test needs: CFLAGS_test_name, in the test's own first lines as "// cflags: ...".
test_cflags = $(shell sed -n 's,^// cflags: ,,p' test/$(1).c)
# A flavor's options beside its command line: the level unless it has one, and the user's.
flavor_level = $(if $(findstring -O0,$(flavor_$(1))),,-O2)
flavor_user = $(if $(findstring -x c++,$(flavor_$(1))),$(CXXFLAGS),$(CFLAGS))

define flavor_rules
$(T)/$(1)/%: test/%.c $(HEADERS) test/tap.h $(wildcard test/*.h) Makefile
	@mkdir -p $$(@D)
	$(flavor_$(1)) $(filter-out -O2,$(TEST_CFLAGS)) $(call flavor_level,$(1)) \
		$$(call test_cflags,$$*) $(call flavor_user,$(1)) $$< -o $$@ -pthread $(LDFLAGS)
endef
$(foreach f,$(HAVE),$(eval $(call flavor_rules,$(f))))

$(T)/sandbox: test/sandbox.c
	@mkdir -p $(@D)
	$(CC) -O2 $(CFLAGS) $< -o $@ $(LDFLAGS)

# Links named FLAVOR.MODE/TEST, so that every run has a name of its own.
BINARIES := $(sort $(foreach r,$(RUNS),$(addprefix $(T)/$(call flavor_of,$(r))/,$(call runs,$(r)))))
RUN_LINKS := $(foreach r,$(RUNS),$(addprefix $(T)/$(r)/,$(call runs,$(r))))
define run_rules
$(T)/$(1)/%: $(T)/$(call flavor_of,$(1))/%
	@mkdir -p $$(@D)
	@ln -sf ../$(call flavor_of,$(1))/$$* $$@
endef
$(foreach r,$(RUNS),$(eval $(call run_rules,$(r))))

# The main job: one run per libc and way of linking that this machine has.
selftest_glibc := $(CC)
selftest_glibc-static := $(CC) -static
selftest_musl := $(MUSL_GCC)
selftest_musl-static := $(MUSL_GCC) -static
SELFTESTS := glibc glibc-static musl musl-static
SELFTEST_FLAGS ?=
selftest: ## which CPU am I on: pin a worker to each CPU and check, for each libc here
	@mkdir -p $(B)/selftest; rc=0; \
	run() { printf '\n== %s\n' "$$1"; shift; "$$@" $(SELFTEST_FLAGS) || rc=1; }; \
	build() { out=$(B)/selftest/$$1; shift; \
		"$$@" -O2 -g -I. $(WARN) $(CFLAGS) test/selftest.c -o $$out -pthread $(LDFLAGS); }; \
	$(foreach s,$(SELFTESTS),if command -v $(firstword $(selftest_$(s))) >/dev/null; then \
		if build $(s) $(selftest_$(s)); then run $(s) $(B)/selftest/$(s); else rc=1; fi; \
		else printf '\n== $(s)\nnot run: no $(firstword $(selftest_$(s))) on this machine\n'; fi; ) \
	for s in glibc glibc-static; do test -x $(B)/selftest/$$s || continue; \
		run "$$s, told not to register (GLIBC_TUNABLES=glibc.pthread.rseq=0)" \
			env GLIBC_TUNABLES=glibc.pthread.rseq=0 $(B)/selftest/$$s; done; \
	exit $$rc

tests: $(BINARIES) $(T)/sandbox $(RUN_LINKS) ## build the tests in every flavor

# Everything that runs on this machine. ONLY=glob selects, e.g. ONLY='musl*/test_counter'.
ONLY ?= *
# Scripts first: they take longest, and at the end no CPU should wait for the last one.
check: ## run all tests on this machine; TAP under prove; REQUIRE_RSEQ=1: no skips for lack of rseq
	@+$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS)) tests
	@rm -rf $(B)/tap; mkdir -p $(B)/tap
	@for f in $(filter-out $(HAVE),$(FLAVORS)); do \
		echo "1..0 # SKIP no compiler for flavor $$f" >$(B)/tap/missing.$$f.tap; done
	@for t in $(SH_TESTS) $(RUN_LINKS); do name=$${t#test/}; \
		case $${name#$(T)/} in $(ONLY)) echo $$t ;; esac; done >$(B)/tests.list
	@prove --timer -j$(JOBS) --exec test/exec - <$(B)/tests.list; rc=$$?; \
		test/summary $(B)/tap || rc=1; exit $$rc

# Real kernels, libcs and architectures under an emulator. ROWS=glob selects (bash's, e.g.
# 'quick-*', '@(aarch64|riscv64)-*'), JOBS=n boots at a time. The cache is not in the tree:
# PERCPU_CACHE.
.PHONY: check-kernels check-kernels-quick
check-kernels: ## run the tests on real kernels and other architectures (qemu-system); ROWS, JOBS
	@ROWS='$(ROWS)' JOBS=$(JOBS) test/kernels/run

check-kernels-quick: ## the rows of check-kernels that take two minutes
	@ROWS='quick-*' JOBS=$(JOBS) test/kernels/run

# ---- Benchmarks. BENCH_FLAGS: options of the program, e.g. BENCH_FLAGS='--case add* --threads 4'.
BENCH_SRC := bench/bench.c bench/cases.c bench/fallback.c bench/vdso.c
BENCH_DEPS := $(BENCH_SRC) bench/bench.h $(HEADERS) Makefile
BENCH_OPT := -O2
BENCH_CFLAGS = -std=c11 -D_GNU_SOURCE $(BENCH_OPT) -g -I. $(WARN) $(CFLAGS)
BENCH_FLAGS ?=
BENCH_COMMIT := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
# librseq's add takes part where pkg-config knows librseq; nothing else depends on it.
BENCH_LIBRSEQ := $(shell pkg-config --exists librseq 2>/dev/null && \
	echo "-DBENCH_LIBRSEQ='\"$$(pkg-config --modversion librseq)\"'" \
		"$$(pkg-config --cflags librseq | sed 's/-I/-isystem /g')")
BENCH_LIBRSEQ_LIBS := $(shell pkg-config --exists librseq 2>/dev/null && pkg-config --libs librseq)
# $(call bench_build,COMPILER,EXTRA FLAGS,OUTPUT,LIBS): the command line, which the program then
# shows.
bench_build = $(1) $(BENCH_CFLAGS) $(2) -DBENCH_BUILD='"$(strip $(BENCH_OPT) $(CFLAGS) $(2))"' \
	-DBENCH_COMMIT='"$(BENCH_COMMIT)"' $(BENCH_SRC) -o $(3) -pthread $(4) $(LDFLAGS)
BENCH_ISA_LEVELS := x86-64 x86-64-v2 x86-64-v3 x86-64-v4
BENCH_ISA_FLAGS ?= --case add* --time-ms 2 --reps 11
BENCH_MODEL = $(shell sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1 | \
	tr -cs 'A-Za-z0-9.\n' '-')
BENCH_MACHINE = $(BENCH_MODEL)-Linux-$(shell uname -r | sed 's/-.*//')

.PHONY: bench bench-musl bench-isa bench-results
$(B)/bench/bench: $(BENCH_DEPS)
	@mkdir -p $(@D)
	$(call bench_build,$(CC) $(BENCH_LIBRSEQ),,$@,$(BENCH_LIBRSEQ_LIBS))

# musl-gcc knows musl's headers only; those of the kernel come after them.
BENCH_MUSL_FLAGS = -static -idirafter /usr/include \
	-idirafter /usr/include/$(shell $(CC) -dumpmachine)
$(B)/bench/bench-musl: $(BENCH_DEPS)
	@mkdir -p $(@D)
	$(call bench_build,$(MUSL_GCC),$(BENCH_MUSL_FLAGS),$@,)

$(B)/bench/isa: bench/isa.c
	@mkdir -p $(@D)
	$(CC) -O2 $(WARN) $< -o $@

$(B)/bench/isa-%: $(BENCH_DEPS)
	@mkdir -p $(@D)
	$(call bench_build,$(CC),-march=$*,$@,)

bench: $(B)/bench/bench ## measure everything on this machine, beside what it competes with (2 min)
	@bench/instructions $(CC) $(CFLAGS)
	@$(B)/bench/bench $(BENCH_FLAGS)

bench-musl: ## the same in a static program of musl
	@command -v $(MUSL_GCC) >/dev/null || \
		{ echo "not run: no $(MUSL_GCC) on this machine"; exit 0; }; \
		$(MAKE) --no-print-directory $(B)/bench/bench-musl && $(B)/bench/bench-musl $(BENCH_FLAGS)

bench-isa: $(B)/bench/isa ## is a build for x86-64-v2, v3, v4 faster? those that this CPU can run
	@for l in $(BENCH_ISA_LEVELS); do \
		$(B)/bench/isa $$l || continue; \
		$(MAKE) --no-print-directory $(B)/bench/isa-$$l || exit 1; \
		[ $$l = x86-64 ] && continue; \
		echo; echo "== $$l beside x86-64"; \
		bench/compare $(B)/bench/isa-x86-64 $(B)/bench/isa-$$l $(BENCH_ISA_FLAGS); \
		[ $$? -le 1 ] || exit 1; \
	done

bench-results: $(B)/bench/bench ## keep a result of this machine, with its plot, in bench/results
	@mkdir -p bench/results
	{ bench/instructions $(CC) $(CFLAGS); \
		$(B)/bench/bench --save bench/results/$(BENCH_MACHINE).csv $(BENCH_FLAGS); } \
		>bench/results/$(BENCH_MACHINE).txt
	bench/plot bench/results/$(BENCH_MACHINE).csv bench/results/$(BENCH_MACHINE).svg

lint: ## style, names, tables of contents, leaked macros
	test/check_lint.sh

define PC
prefix=$(PREFIX)
includedir=$(subst $(PREFIX)/,$${prefix}/,$(INCLUDEDIR))

Name: percpu
Description: Per-CPU counters, gauges, free lists and operations for Linux (header only)
Version: $(VERSION)
Cflags: -I"$${includedir}"
endef
define CMAKE_CONFIG
if(NOT TARGET percpu::percpu)
  # By the way from here, so that the tree can be staged or moved.
  file(RELATIVE_PATH percpu_include "$(CMAKEDIR)" "$(INCLUDEDIR)")
  get_filename_component(percpu_include "$${CMAKE_CURRENT_LIST_DIR}/$${percpu_include}" ABSOLUTE)
  add_library(percpu::percpu INTERFACE IMPORTED)
  set_target_properties(percpu::percpu PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "$${percpu_include}")
endif()
endef
define CMAKE_VERSION
set(PACKAGE_VERSION "$(VERSION)")
if(PACKAGE_FIND_VERSION AND (PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION
   OR NOT PACKAGE_FIND_VERSION_MAJOR EQUAL "$(call version_part,MAJOR)"))
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
endef
export PC CMAKE_CONFIG CMAKE_VERSION

install: ## copy the headers, the pkg-config file and the CMake package (PREFIX, DESTDIR)
	install -d "$(DESTDIR)$(INCLUDEDIR)" "$(DESTDIR)$(PKGCONFIGDIR)" "$(DESTDIR)$(CMAKEDIR)"
	install -m 644 $(HEADERS) "$(DESTDIR)$(INCLUDEDIR)"
	@printf '%s\n' "$$PC" >"$(DESTDIR)$(PKGCONFIGDIR)/percpu.pc"
	@printf '%s\n' "$$CMAKE_CONFIG" >"$(DESTDIR)$(CMAKEDIR)/percpu-config.cmake"
	@printf '%s\n' "$$CMAKE_VERSION" >"$(DESTDIR)$(CMAKEDIR)/percpu-config-version.cmake"
	chmod 644 "$(DESTDIR)$(PKGCONFIGDIR)/percpu.pc" "$(DESTDIR)$(CMAKEDIR)/percpu-config.cmake" \
		"$(DESTDIR)$(CMAKEDIR)/percpu-config-version.cmake"

uninstall: ## remove what install copied, and directories that are empty then
	rm -f $(foreach h,$(HEADERS),"$(DESTDIR)$(INCLUDEDIR)/$(h)") \
		"$(DESTDIR)$(PKGCONFIGDIR)/percpu.pc" "$(DESTDIR)$(CMAKEDIR)/percpu-config.cmake" \
		"$(DESTDIR)$(CMAKEDIR)/percpu-config-version.cmake"
	@rmdir "$(DESTDIR)$(CMAKEDIR)" 2>/dev/null; \
		if [ -n "$(DESTDIR)" ]; then cd "$(DESTDIR)" && \
		for d in "$(CMAKEDIR)" "$(PKGCONFIGDIR)" "$(INCLUDEDIR)"; do \
		rmdir -p "$${d#/}" "$$(dirname "$${d#/}")" 2>/dev/null; done; fi; true

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

clean: ## remove build/
	rm -rf $(B)
