# A short front for meson: see README.md. Every target installs the Debian packages it needs.
.PHONY: all test asan tsan valgrind lint abi install bench clean
PREFIX ?= /usr/local

all:
	@scripts/build build

test:
	@scripts/deps build test
	@scripts/build build
	@tests/run build

# The whole suite under AddressSanitizer and UndefinedBehaviorSanitizer.
asan:
	@scripts/deps build test sanitize
	@scripts/build build-asan -Db_sanitize=address,undefined -Dbuildtype=debugoptimized
	@tests/run build-asan

# The threaded parts under ThreadSanitizer.
tsan:
	@scripts/deps build test sanitize
	@scripts/build build-tsan -Db_sanitize=thread
	@meson test -C build-tsan --print-errorlogs --suite threads

lint:
	@scripts/deps build lint
	@scripts/build build
	@scripts/lint

abi:
	@scripts/deps build test
	@scripts/build build
	@scripts/abi-check

install:
	@scripts/build build-install -Dprefix=$(PREFIX) -Dbuildtype=release -Dwerror=false
	@meson install -C build-install --quiet

bench:
	@scripts/deps build bench
	@scripts/build build
	@bench/run build

clean:
	rm -rf build build-asan build-tsan build-install
