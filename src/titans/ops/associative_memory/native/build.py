"""Compiling the kernel on first use, for the machine it runs on."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wno-psabi")
PATIENCE = 300  # seconds that the compiler may take

log = logging.getLogger(__name__)


@functools.cache
def load_kernel(real: str) -> ctypes.CDLL | None:
    """Load the kernel, compiling it where the user's cache does not hold it.

    Args:
        real: the numbers it computes with, "float" or "double".

    Returns:
        The shared object; None where it cannot be had, after a line in the log that says why.
    """
    try:
        compiler = _compiler()
        path = _cache() / f"{_key(compiler, real)}.so"
        if not path.exists():
            _compile(compiler, real, path)
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # damaged
            _compile(compiler, real, path)
            return ctypes.CDLL(str(path))
    except _Unavailable as reason:
        log.info("no native kernel: %s; PyTorch does its work", reason)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("the native kernel could not be compiled, PyTorch does its work: %s", error)
    return None


class _Unavailable(Exception):
    """This machine is not one the kernel is compiled on; the message says why."""


def _compiler() -> list[str]:
    """Find a C++ compiler: the command of `CXX`, as everywhere, or one of the usual names."""
    for command in (shlex.split(os.environ.get("CXX", "")), *([name] for name in COMPILERS)):
        if command and shutil.which(command[0]):
            return command
    raise _Unavailable("no C++ compiler is installed")


def _cache() -> Path:
    """Return the folder of compiled kernels: one that nobody else can put a library in."""
    if not hasattr(os, "getuid"):
        raise _Unavailable("it is compiled on Unix only")
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "titans" / "native"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise _Unavailable(f"others may write to {path}")
    return path


def _key(compiler: list[str], real: str) -> str:
    """Name what decides the compiled code: sources, flags, compiler and processor."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=PATIENCE).stdout
    parts = [x.read_bytes() for x in _sources()]
    parts += [version, _processor().encode(), " ".join((*compiler, *FLAGS)).encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return f"{real}-{digest[:32]}"


def _sources() -> list[Path]:
    return sorted(x for x in SOURCES.iterdir() if x.suffix in (".h", ".cpp"))


def _processor() -> str:
    """Describe the processor, as far as `-march=native` may depend on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(x for x in lines if x.startswith(("model", "flags", "CPU", "Features")))


def _compile(compiler: list[str], real: str, path: Path) -> None:
    """Compile to `path`; several processes may do so at once."""
    log.info("compiling the native kernel to %s, once", path)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [*compiler, *FLAGS, f"-DREAL={real}", str(SOURCES / "kernel.cpp"), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode:
            raise OSError(f"{shlex.join(command)} says {done.stderr.strip()[-500:]}")
        os.replace(made, path)
