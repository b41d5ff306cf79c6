"""Compiling the kernel on first use, for the machine it runs on."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wno-psabi")
ANSWER, PATIENCE = 30, 180  # seconds that the compiler may take to tell its version, and to compile

log = logging.getLogger(__name__)


@functools.cache
def load_kernel(real: str) -> ctypes.CDLL | None:
    """Load the kernel, compiling it where the user's cache does not hold it whole.

    Args:
        real: the numbers it computes with, "float" or "double".

    Returns:
        The shared object; None where it cannot be had, after a line in the log that says why.
    """
    try:
        compiler = _compiler()
        folder, name = _cache(), _key(compiler, real)
        path = _whole(folder, name) or compile_kernel(compiler, real, folder, name)
        return ctypes.CDLL(str(path))
    except _Unavailable as missing:
        log.info("no native kernel: %s; PyTorch does its work", missing)
    except Exception as error:  # whatever a machine, its compiler or its settings may do: the work goes on
        reason = " ".join(str(error).split()) or type(error).__name__
        log.warning("the native kernel could not be compiled, PyTorch does its work: %s", reason)
    return None


class _Unavailable(Exception):
    """This machine is not one the kernel is compiled on; the message says why."""


def _compiler() -> list[str]:
    """Find a C++ compiler: the command of `CXX`, as everywhere, or one of the usual names."""
    named = os.environ.get("CXX", "")
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise ValueError(f"CXX is {named!r}, no command of a shell ({error})") from error
    for command in (words, *([name] for name in COMPILERS)):
        if command and shutil.which(command[0]):
            return command
    raise _Unavailable("no C++ compiler is installed")


def _cache() -> Path:
    """Return the folder of compiled kernels: one that nobody else can put a library in."""
    if not hasattr(os, "getuid"):
        raise _Unavailable("it is compiled on Unix only")
    try:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "titans" / "native"
    except RuntimeError as error:  # neither HOME nor an entry among the users
        raise _Unavailable("this user has no home folder to keep it in; set XDG_CACHE_HOME") from error
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _ours(path):
        raise _Unavailable(f"others may write to {path}")
    return path


def _ours(path: Path) -> bool:
    """Tell whether nobody else can change a file, or what a folder holds."""
    found = path.stat()
    return found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o022


def _whole(folder: Path, name: str) -> Path | None:
    """Find a library that is as it was compiled: its name ends with its digest, as loading a damaged one may kill."""
    for path in folder.glob(f"{name}-*.so"):
        with contextlib.suppress(FileNotFoundError):  # another process may take it away first
            if _ours(path) and path.name == f"{name}-{_digest(path.read_bytes())}.so":
                return path
            path.unlink()
    return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _key(compiler: list[str], real: str) -> str:
    """Name what decides the compiled code: sources, flags, compiler and processor."""
    parts = [x.read_bytes() for x in _sources()]
    parts += [_run([*compiler, "--version"], ANSWER), _processor().encode(), os.fsencode(" ".join((*compiler, *FLAGS)))]
    return f"{real}-{_digest(b''.join(hashlib.sha256(part).digest() for part in parts))}"


def _sources() -> list[Path]:
    return sorted(x for x in SOURCES.iterdir() if x.suffix in (".h", ".cpp"))


def _processor() -> str:
    """Describe the processor, as far as `-march=native` may depend on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(x for x in lines if x.startswith(("model", "flags", "CPU", "Features")))


def compile_kernel(compiler: list[str], real: str, folder: Path, name: str) -> Path:
    """Compile into the folder; several processes may do so at once."""
    log.info("compiling the native kernel to %s, once", folder)
    with tempfile.TemporaryDirectory(dir=folder) as made_in:
        made = Path(made_in) / "kernel.so"
        _run([*compiler, *FLAGS, f"-DREAL={real}", str(SOURCES / "kernel.cpp"), "-o", str(made)], PATIENCE)
        made.chmod(0o700)
        return made.replace(folder / f"{name}-{_digest(made.read_bytes())}.so")


def _run(command: list[str], seconds: float) -> bytes:
    """Run a command and return its output; what it started ends with it, also where it takes too long."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        reason = errors.decode(errors="replace").strip()[-500:]
        raise OSError(f"{shlex.join(command)} ended with status {process.returncode}, saying: {reason}")
    return output
