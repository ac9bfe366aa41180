"""Uses installed wheels as a newcomer would: run from an empty directory by an environment that has nothing but them.

``nox -s wheels`` copies this file and ``blocks.py`` out of the source tree and calls it with a copy of the README.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SCRIPTS = Path(sys.executable).parent
DISTRIBUTIONS = sorted(
    dist.metadata["Name"] for dist in importlib.metadata.distributions() if dist.metadata["Name"].startswith("letitloop")
)


def check_that_it_is_the_wheel() -> None:
    import letitloop

    site = Path(sysconfig.get_path("purelib"))
    assert Path(letitloop.__file__).is_relative_to(site), letitloop.__file__
    for name in DISTRIBUTIONS:
        dist = importlib.metadata.distribution(name)
        direct = json.loads(dist.read_text("direct_url.json") or "{}")
        assert not direct.get("dir_info", {}).get("editable"), f"{name} is installed in editable mode"
        names = {file.as_posix() for file in dist.files or ()}
        assert any(one.endswith("/licenses/LICENSE") for one in names), f"{name} carries no licence"
        assert any(one.endswith("/py.typed") for one in names), f"{name} says nowhere that it is typed"
        assert not any(one.startswith(("tests/", "src/")) for one in names), f"{name} ships what it should not"
    assert not importlib.util.find_spec("pytest"), "the environment should hold nothing but the wheels and what they require"


def check_that_every_public_name_imports() -> None:
    import letitloop

    found = list(pkgutil.walk_packages(letitloop.__path__, "letitloop."))
    assert found
    for module in ["letitloop", *(one.name for one in found if not one.name.endswith("__main__"))]:
        loaded = importlib.import_module(module)
        for name in getattr(loaded, "__all__", ()):
            getattr(loaded, name)
    for name in DISTRIBUTIONS:
        importlib.import_module(name.replace("-", "_"))


def run(*command: str, exit_code: int = 0) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LETITLOOP_", "PYTHON"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == exit_code, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, f"{command}:\n{done.stderr}"
    return done.stdout


def check_the_commands() -> None:
    version = importlib.metadata.version("letitloop")
    for command in (["lil"], ["letitloop"]):
        assert version in run(str(SCRIPTS / command[0]), "--version")
    assert version in run(sys.executable, "-m", "letitloop", "--version")
    run(str(SCRIPTS / "lil"), "runs")  # without a store: a friendly line
    json.loads(run(str(SCRIPTS / "lil"), "demo", "--json"))  # on the texts that the wheel ships


def check_the_readme(readme: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from blocks import run_page

    with tempfile.TemporaryDirectory() as place:
        assert run_page(readme, Path(place)), "the README shows no code"


def main(readme: Path) -> None:
    assert not any(Path().iterdir()), "run this from an empty directory"
    check_that_it_is_the_wheel()
    check_that_every_public_name_imports()
    check_the_commands()
    check_the_readme(readme)
    print(f"installed and used from wheels: {', '.join(DISTRIBUTIONS)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
