"""Every check of the repository, one session each: ``uv run --locked nox`` runs the default set.

A session's environment is what ``uv.lock`` says, and nothing else. Arguments after ``--`` go to the session's tool.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import nox

ROOT = Path(__file__).parent
ADAPTERS = ("autogen", "crewai", "langgraph", "llamaindex", "smolagents")
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
MAIN = "3.11"
# what starts processes by the hundred or draws on terminals, and depends on the interpreter least: once, on the main one
ONCE = ("supervision", "effects/providers", "testing_kit", "cli")
ELSEWHERE = ("crash", "sweeps", "docs", "wheels", "bench", "typing", *ADAPTERS)  # folders of tests/ with a session of their own

os.environ["UV_PYTHON_DOWNLOADS"] = "never"  # an interpreter that is not here is not tested: it is never fetched
os.environ.pop("VIRTUAL_ENV", None)  # that of `uv run`: each session has its own
UV = os.environ.get("UV") or "uv"  # `uv run` tells where it lies, on PATH or not

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True


def find(version: str) -> str | None:
    """Return the path of an interpreter of that version, if one is here and runs; a shim that points nowhere does not."""
    known = subprocess.run(
        [UV, "python", "find", "--system", "--no-project", version], capture_output=True, text=True, check=False
    ).stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [
        known,
        shutil.which(f"python{version}"),
        *sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True),
    ]
    for candidate in filter(None, candidates):
        program = "import sqlite3, ssl, sys, zlib; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([candidate, "-c", program], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return str(candidate)
    return None


INTERPRETERS = {version: path for version in VERSIONS if (path := find(version))}
PYTHON = INTERPRETERS.get(MAIN)  # None: the one that runs nox


def sync(session: nox.Session, *groups: str, only: bool = False) -> None:
    """Make the session's environment exactly what ``uv.lock`` says: the core and these groups, or only the groups."""
    flag = "--only-group" if only else "--group"
    session.run_install(
        "uv",
        "sync",
        "--locked",
        "--quiet",
        "--package=letitloop-workspace",
        "--no-default-groups",
        *(f"{flag}={group}" for group in groups),
        env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location},
    )


def pytest(session: nox.Session, *args: str) -> None:
    """Run pytest in the session's environment; a folder without a test is a failure (pytest's exit code 5)."""
    session.run("python", "-m", "pytest", *args, *session.posargs)


def core(session: nox.Session) -> None:
    """Run the tests of the core's rooms and of the repository itself."""
    if missing := [version for version in VERSIONS if version not in INTERPRETERS]:
        session.log(f"not here, so not tested: Python {', '.join(missing)}")
    sync(session, "test")
    left_out = ELSEWHERE if session.name == "core" else (*ELSEWHERE, *ONCE)
    pytest(session, "tests", "-n", "auto", *(f"--ignore=tests/{folder}" for folder in left_out))


# `core` is the one to run while working; `core-3.12` and so on are its tests on the other interpreters that are here
nox.session(core, python=PYTHON, name="core", tags=["core"])
for _version, _path in INTERPRETERS.items():
    if _version != MAIN:
        nox.session(core, python=_path, name=f"core-{_version}", tags=["core"])


def adapter(session: nox.Session) -> None:
    """Run an adapter's tests with its framework as it is, and scripted models."""
    name = session.name
    sync(session, "test", "types", name)
    stated = sorted(map(str, Path("tests", name).glob("typed.py")))  # the types of what it wraps
    session.run("mypy", f"packages/{name}/src", *stated)
    pytest(session, f"tests/{name}", "-n", "auto", "--dist=worksteal")  # a few long tests among hundreds of short ones


for _name in ADAPTERS:
    nox.session(adapter, python=PYTHON, name=_name, tags=["adapters"])


def oldest(session: nox.Session) -> None:
    """Run an adapter's tests with the oldest versions of its framework that it says it works with."""
    name = session.name.removesuffix("-oldest")
    sync(session, "test", name)
    declared = re.findall(rf'"({name[:4]}[a-z-]*)>=([\d.]+)', (ROOT / f"packages/{name}/pyproject.toml").read_text())
    versions = [f"{package}=={version}" for package, version in declared]
    session.run_install("uv", "pip", "install", "--quiet", f"--python={session.virtualenv.location}", *versions)
    slow = ("test_kills.py", "test_cookbook.py", "test_docs.py", "test_side_by_side.py")  # the others ask the same of a version
    pytest(session, f"tests/{name}", "-n", "auto", *(f"--ignore=tests/{name}/{file}" for file in slow))


for _name in ("crewai", "langgraph"):
    nox.session(oldest, python=PYTHON, name=f"{_name}-oldest", default=False)


@nox.session(python=PYTHON, name="llamaindex-newest-pydantic", default=False)
def llamaindex_newest_pydantic(session: nox.Session) -> None:
    """Run the LlamaIndex adapter's tests on the pydantic that breaks LlamaIndex's own record of chat memory."""
    sync(session, "test", "llamaindex")
    session.run_install("uv", "pip", "install", "--quiet", f"--python={session.virtualenv.location}", "pydantic>=2.14")
    pytest(session, "tests/llamaindex/test_agents.py", "-n", "auto")  # what holds chat memory


def sweeps_adapter(session: nox.Session) -> None:
    """Kill an adapter's programs at every event; its own session samples these."""
    name = session.name.removeprefix("sweeps-")
    sync(session, "test", name)
    files = sorted(map(str, Path("tests", name).glob("test_kill*.py")))
    session.env["SWEEP"] = "all"
    pytest(session, *files, "-n", "auto", "--timeout=3600")


for _name in ADAPTERS:
    nox.session(sweeps_adapter, python=PYTHON, name=f"sweeps-{_name}", default=False)


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Ruff: its rules and its format."""
    sync(session, "lint", only=True)
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")


@nox.session(python=PYTHON)
def types(session: nox.Session) -> None:
    """Mypy and pyright, both strict, over the core and over the file that states the types of the public API."""
    sync(session, "types", *ADAPTERS)  # the facades name what the adapters have
    session.run("mypy", "core/src", "tests/typing")
    session.run("pyright", "--pythonpath", str(Path(session.bin) / "python"))


@nox.session(python=PYTHON)
def layers(session: nox.Session) -> None:
    """Imports between the rooms of the core point one way."""
    sync(session, "layers")
    session.run("lint-imports", "--no-cache")


@nox.session(python=PYTHON)
def crash(session: nox.Session) -> None:
    """Simulated power cuts, sampled SIGKILL sweeps, and the mutants that these must notice."""
    sync(session, "test")
    pytest(session, "tests/crash", "-n", "auto")


@nox.session(python=PYTHON)
def docs(session: nox.Session) -> None:
    """Every code block of the README and of docs/, and every example in a docstring, runs."""
    sync(session, "test")
    pytest(session, "tests/docs", "-n", "auto")


@nox.session(python=PYTHON)
def wheels(session: nox.Session) -> None:
    """Build all distributions, install the wheels into an empty environment, and use them away from the source tree."""
    with tempfile.TemporaryDirectory(prefix="letitloop-wheels-") as name:  # outside the source tree, which must not help
        place = Path(name).resolve()
        dist, empty, pins = place / "dist", place / "empty", place / "pins.txt"
        empty.mkdir()
        session.run("uv", "build", "--quiet", "--all-packages", f"--out-dir={dist}", external=True)
        wheels_built = sorted(map(str, dist.glob("*.whl")))
        names = [Path(wheel).name.partition("-")[0].replace("_", "-") for wheel in wheels_built]
        session.run(
            *("uv", "export", "--quiet", "--locked", "--no-emit-workspace", "--no-default-groups", f"--output-file={pins}"),
            *(f"--package={one}" for one in names),
            external=True,
            silent=True,
        )
        base = Path(session.bin)
        session.run("uv", "venv", "--quiet", f"--python={base / 'python'}", str(place / "venv"), external=True)
        python = str(place / "venv" / base.name / "python")
        install = ("uv", "pip", "install", "--quiet", f"--python={python}")
        session.run(*install, "--require-hashes", f"--requirement={pins}", external=True)
        session.run(*install, "--no-deps", *wheels_built, external=True)
        for file in ("tests/wheels/check_installed.py", "tests/docs/blocks.py", "README.md"):
            shutil.copy(ROOT / file, place)
        with session.chdir(empty):
            session.run(python, "-s", str(place / "check_installed.py"), str(place / "README.md"), external=True)


@nox.session(python=PYTHON, default=False)
def sweeps(session: nox.Session) -> None:
    """Kill at every point of everything; the default set samples these."""
    sync(session, "test")
    pytest(session, "tests/sweeps", "-n", "auto", "--timeout=3600")


@nox.session(python=PYTHON, default=False)
def bench(session: nox.Session) -> None:
    """Speed and size against their bars: medians of shuffled rounds in one run, as ratios; raw data as JSON."""
    sync(session, "test")
    session.run("python", "tests/bench/run.py", *session.posargs)


def bench_adapter(session: nox.Session) -> None:
    """Measure what an adapter costs, against its bars."""
    name = session.name.removeprefix("bench-")
    sync(session, "test", name)
    if name == "langgraph":  # a saver is held against the framework's own savers
        session.run("python", "tests/bench/langgraph.py", *session.posargs)
    else:
        session.run("python", "tests/bench/run.py", f"--only={name}", *session.posargs)


for _name in ("autogen", "langgraph", "smolagents"):
    nox.session(bench_adapter, python=PYTHON, name=f"bench-{_name}", default=False)
