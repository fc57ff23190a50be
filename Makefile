# A short front for meson: see README.md. Every target installs the Debian packages it needs.
.PHONY: all test unit asan tsan deep lint style abi install bench clean
PREFIX ?= /usr/local

all:
	@scripts/build build

test:
	@scripts/deps build test
	@scripts/build build -Dtests=true
	@tests/run build

# The tests of a second each.
unit:
	@scripts/deps build test
	@scripts/build build -Dtests=true
	@tests/run build --suite unit

# Under AddressSanitizer and UndefinedBehaviorSanitizer: all but tests/faults, and each test of the program on one of
# its stores. What a store does is compared with the model on all of them. The rest is for `make deep`.
asan:
	@scripts/deps build test sanitize
	@scripts/build build-asan -Dtests=true -Db_sanitize=address,undefined
	@HOLDFAST_BRIEF=1 tests/run build-asan

# The threaded parts under ThreadSanitizer.
tsan:
	@scripts/deps build test sanitize
	@scripts/build build-tsan -Dtests=true -Db_sanitize=thread
	@tests/run build-tsan --suite threads

# What is too long for every change: an hour.
deep:
	@scripts/deps build test sanitize
	@tests/deep

# The part of lint that takes seconds.
style:
	@scripts/deps build lint
	@scripts/lint style

lint:
	@scripts/deps build test lint
	@scripts/build build -Dtests=true
	@scripts/lint

abi:
	@scripts/deps build test
	@scripts/build build
	@scripts/abi-check

install:
	@scripts/build build-install -Dprefix=$(PREFIX) -Dbuildtype=release -Dwerror=false
	@meson install -C build-install --quiet --no-rebuild
	@# So that programs find the new library; a package does this when it is unpacked.
	@if [ -z "$$DESTDIR" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi
	@echo "installed below $$DESTDIR$(PREFIX)"

bench:
	@scripts/deps build test bench
	@scripts/build build -Dtests=true
	@bench/run build

clean:
	rm -rf build build-asan build-tsan build-install
