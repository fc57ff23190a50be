"""`make install`: everything is where it belongs, and a program built against it with pkg-config runs."""
import fcntl
import os
import subprocess

import pytest

from conftest import BUILD, ROOT

PREFIX = "/opt/holdfast"
COMMANDS = """run acquire extend release status list why events guard sweep update metrics init help""".split()


def install(sources, destdir, prefix):
    done = subprocess.run(["make", "install", f"PREFIX={prefix}", f"DESTDIR={destdir}"], cwd=sources, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr


def copy_sources(to):
    """What is in the repository, so that the build directories of the original stay as they are."""
    tracked = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                             capture_output=True, check=True).stdout
    archive = subprocess.run(["tar", "--null", "-T", "-", "-cf", "-"], cwd=ROOT, input=tracked, capture_output=True,
                             check=True).stdout
    to.mkdir()
    subprocess.run(["tar", "-xf", "-", "-C", to], input=archive, check=True)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A directory that all workers of this run share: building takes long, so only the first one does it."""
    if BUILD.endswith("-asan"):
        pytest.skip("what is installed is built anew, without sanitizers: `make test` tests it")
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "install"
    shared.mkdir(exist_ok=True)
    with open(shared / "guard", "w", encoding="utf-8") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not (shared / "done").exists():
            copy_sources(shared / "sources")
            install(shared / "sources", shared / "root", PREFIX)
            (shared / "done").touch()
    return shared


@pytest.fixture(scope="module")
def installed(scratch):
    """The root of an installation below PREFIX, made as a packager would."""
    return scratch / "root"


def prefix(root):
    return root / PREFIX.lstrip("/")


def find(root, name):
    found = [path for path in root.rglob(name)]
    assert found, f"{name} was not installed"
    return found[0]


def env_of(root, tmp_path):
    """As on a machine where `root` is /: pkg-config and the linker are told where that is."""
    pc = find(root, "holdfast.pc")
    lib = find(root, "libholdfast.so").parent
    return {**os.environ, "PKG_CONFIG_PATH": str(pc.parent), "PKG_CONFIG_SYSROOT_DIR": str(root),
            "LD_LIBRARY_PATH": str(lib), "HOLDFAST_STORE": f"sqlite:{tmp_path}/store.db"}


def pkg_config(env, *args):
    return subprocess.run(["pkg-config", *args, "holdfast"], env=env, check=True, text=True,
                          capture_output=True).stdout.split()


def build_and_run(compiler, source, env, tmp_path, extra=()):
    program = tmp_path / "program"
    flags = pkg_config(env, "--cflags", "--libs")
    subprocess.run([*compiler, source, *flags, *extra, "-o", program], env=env, check=True)
    return subprocess.run([program], env=env, check=True, text=True, capture_output=True).stdout


def test_program_runs(installed, tmp_path):
    program = prefix(installed) / "bin" / "holdfast"
    done = subprocess.run([program, "run", "hello", "--", "echo", "only one of me"], text=True, capture_output=True,
                          env=env_of(installed, tmp_path))
    assert (done.returncode, done.stdout) == (0, "only one of me\n"), done.stderr


def test_library_has_its_three_names(installed):
    lib = find(installed, "libholdfast.so").parent
    assert prefix(installed) in lib.parents
    real = lib / "libholdfast.so.0.1.0"
    assert real.is_file() and not real.is_symlink()
    assert os.path.realpath(lib / "libholdfast.so") == os.path.realpath(real)
    assert os.path.realpath(lib / "libholdfast.so.0") == os.path.realpath(real)
    dynamic = subprocess.run(["readelf", "-d", real], check=True, text=True, capture_output=True).stdout
    assert "[libholdfast.so.0]" in dynamic
    assert find(installed, "libholdfast.a").parent == lib


def test_only_promised_symbols_are_exported(installed):
    library = find(installed, "libholdfast.so")
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, text=True,
                           capture_output=True).stdout.splitlines()
    names = {line.split()[2].split("@")[0] for line in lines}
    assert "hf_acquire" in names
    assert {name for name in names if not name.startswith("hf_")} == {"HOLDFAST_0"}


def test_one_header(installed):
    include = prefix(installed) / "include"
    assert [path.relative_to(include).as_posix() for path in include.rglob("*.h")] == ["holdfast.h"]


@pytest.mark.parametrize("compiler, source", [
    (("cc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"), "lock.c"),
    (("c++", "-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror"), "lock.cpp"),
])
def test_pkg_config_builds_a_program(installed, tmp_path, compiler, source):
    env = env_of(installed, tmp_path)
    output = build_and_run(compiler, os.path.join(ROOT, "examples", source), env, tmp_path)
    assert output.startswith("only one of me; fence ")


def test_pkg_config_builds_a_static_program(installed, tmp_path):
    env = env_of(installed, tmp_path)
    # What pkg-config lists with --static comes from Debian's own packages: outside the root.
    archive = find(installed, "libholdfast.a")
    include = prefix(installed) / "include"
    needed = [flag for flag in pkg_config(env, "--static", "--libs") if flag.startswith("-l") and flag != "-lholdfast"]
    program = tmp_path / "static"
    subprocess.run(["cc", "-std=c99", os.path.join(ROOT, "examples", "lock.c"), f"-I{include}", archive, *needed,
                    "-o", program], check=True)
    del env["LD_LIBRARY_PATH"]
    output = subprocess.run([program], env=env, check=True, text=True, capture_output=True).stdout
    assert output.startswith("only one of me; fence ")


def test_man_pages(installed):
    man = prefix(installed) / "share" / "man"
    pages = {path.name for path in man.rglob("*.[1-8]*")}
    assert "holdfast.1" in {name.removesuffix(".gz") for name in pages}, pages
    for page in man.rglob("*.[1-8]*"):
        subprocess.run(["mandoc", "-T", "utf8", page], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("where", [
    "share/bash-completion/completions/holdfast",
    "share/zsh/site-functions/_holdfast",
    "share/fish/vendor_completions.d/holdfast.fish",
])
def test_completions_know_every_command(installed, where):
    text = (prefix(installed) / where).read_text()
    assert [command for command in COMMANDS if command not in text] == []


def test_nothing_lies_outside_the_prefix(installed):
    outside = [path for path in installed.rglob("*") if path.is_file() and prefix(installed) not in path.parents]
    assert outside == []


def test_another_prefix_later(scratch, tmp_path):
    install(scratch / "sources", tmp_path, "/usr")
    assert (tmp_path / "usr" / "bin" / "holdfast").is_file()
    assert "prefix=/usr\n" in find(tmp_path, "holdfast.pc").read_text()
