# A thin front for CMake. `make help` lists what there is.
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
SHAKE ?= 1
PREFIX ?= /usr/local

all: ## build the libraries and the command (build/)
	@cmake --preset default > /dev/null && cmake --build build -j $(JOBS) --target product

tests: ## build the tests, examples and benchmarks, too
	@cmake --preset default > /dev/null && cmake --build build -j $(JOBS)

test: tests ## build and run the tests
	@ctest --test-dir build -j $(JOBS) --output-on-failure

check: ## what a change must pass: packages, build, quick tests, a sanitizer build (`./check deep`: the rest)
	@./check

asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@cmake --preset asan > /dev/null && cmake --build build/asan -j $(JOBS)
	@LSAN_OPTIONS=suppressions=$(CURDIR)/tools/lsan.supp:print_suppressions=0 ctest --test-dir build/asan -j $(JOBS) --output-on-failure -LE slow

tsan: ## the tests under ThreadSanitizer
	@cmake --preset tsan > /dev/null && cmake --build build/tsan -j $(JOBS)
	@ctest --test-dir build/tsan -j $(JOBS) --output-on-failure -LE 'slow|one_thread'

interop-newest: tests ## tests/interop with the newest releases of the SDK and of other packages
	@TINKC_NEWEST=1 ctest --test-dir build -j $(JOBS) --output-on-failure -R '^interop\.'

soak: tests ## ten minutes of load by 32 clients; prints the memory curve (SOAK_S, SOAK_CLIENTS)
	@bash tests/interop/soak.sh build $(or $(SOAK_S),600) $(or $(SOAK_CLIENTS),32)
shake: ## the same with threads that stumble; SHAKE is the seed
	@cmake --preset tsan > /dev/null && cmake --build build/tsan -j $(JOBS)
	@$(CC) -O1 -Wall -Wextra -shared -fPIC -o build/tsan/shake.so tests/preload/shake.c
	@SHAKE=$(SHAKE) LD_PRELOAD=$(CURDIR)/build/tsan/shake.so ctest --test-dir build/tsan -j $(JOBS) --output-on-failure -LE 'slow|one_thread'

powerloss: tests ## lose power, or end, at every moment of a service's life, in every way; takes minutes
	@TINKC_POWER_LOSS=all build/tests/test_torture.power_loss
	@TINKC_FAILPOINTS=all build/tests/test_torture.failpoints

torture: tests ## let the n-th allocation fail, for every n
	@tools/torture build

fuzz: ## run every fuzzer for FUZZ_SECONDS
	@cmake --preset fuzz > /dev/null && cmake --build build/fuzzing -j $(JOBS)
	@tools/run-fuzzers build/fuzzing/fuzz $(FUZZ_SECONDS)

mutants: ## plant faults, report which ones a test notices (MUTANTS=150 tries a sample)
	@tools/mutants --asan --jobs $(JOBS) $(if $(MUTANTS),--sample $(MUTANTS))

mutants-quick: ## the sample of ./check deep: 14 planted faults in each folder, quick tests only
	@tools/mutants --quick --jobs $$(($(JOBS) * 2))

bench: tests ## measure, beside peers in the same run
	@bench/run build

gpu: ## the engine with its module for NVIDIA GPUs (needs nvcc)
	@cmake --preset default -DTINKC_CUDA=ON > /dev/null && cmake --build build -j $(JOBS)

maths: ## the engine's maths with a C compiler alone (build/maths)
	@tools/build-maths

tidy: tests ## clang-tidy with the checks of .clang-tidy
	@tools/check-tidy build

coverage: ## lines and branches that the tests reach, by folder
	@tools/coverage

abidiff: tests ## binary interface against the last tag, or abi/baseline (REF=... a commit)
	@tools/check-abi $(REF)

format: ## clang-format over everything but include/
	@git ls-files '*.c' '*.h' | grep -v '^include/' | xargs clang-format -i

abi: tests ## rewrite abi/exports.txt
	@tools/check-exports --update build

install: all ## install below PREFIX (DESTDIR is honoured)
	@cmake --install build --prefix $(PREFIX)
	@[ -n "$(DESTDIR)" ] || ldconfig 2> /dev/null || echo "note: if $(PREFIX)/lib is not searched for libraries, set LD_LIBRARY_PATH or run ldconfig as root"

uninstall: ## remove what install wrote (DESTDIR is honoured)
	@tools/uninstall build "$(DESTDIR)"

deb: ## Debian packages (build/deb)
	@packaging/make-deb

static: ## one program that runs on any x86-64 Linux (build/static)
	@packaging/make-static

wheel: ## the Python wheel with the command and libtinkc (build/wheel)
	@packaging/make-wheel

container: static ## an image from scratch with that program, where podman or docker can run
	@packaging/make-container

posix: ## build with the portable calls of the platform layer, as on macOS, and run the tests (build/posix)
	@cmake -G Ninja -S . -B build/posix -DTINKC_PLATFORM=posix -DTINKC_CUDA=OFF > /dev/null && cmake --build build/posix -j $(JOBS)
	@ctest --test-dir build/posix -j $(JOBS) --output-on-failure -LE deep

arm64: ## cross-build for arm64 and run the tests under qemu (build/arm64)
	@packaging/make-arm64

firstday: ## install the packages on a bare Debian root and use them for a day (root, debootstrap)
	@packaging/first-day

pythonday: ## the same with the wheel: pip install, the README's lines, the example's tests and notebook (root, debootstrap)
	@packaging/python-day

dist: ## a source archive that is the same for everybody, with checksums (build/dist)
	@packaging/make-dist

release: ## all artifacts with checksums, and the release notes (build/release); publishes nothing
	@packaging/make-release

clean: ## remove build/
	@rm -rf build

help: ## this list
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):.*## (.*)/  \1\t\2/' | expand -t 14

.PHONY: all tests test check asan tsan soak shake powerloss torture fuzz mutants mutants-quick bench maths format abi install uninstall clean help tidy coverage abidiff deb dist static wheel release container arm64 posix firstday pythonday
