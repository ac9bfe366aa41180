"""A supervised function's process as a fresh interpreter, which imports the function: for systems and programs that cannot fork."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from contextlib import contextmanager

from letitloop.codecs import default_codecs
from letitloop.errors import InvalidArgument, UnencodableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from letitloop.supervision.signals import Mailbox
    from letitloop.supervision.supervise import Call
    from letitloop.supervision.watcher import Child

__all__ = ["main", "starter"]

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from letitloop.supervision.spawned import main; main(*sys.argv[2:])"
)


@contextmanager
def starter(call: Call, mailbox: Mailbox) -> Generator[Callable[[Child, dict[str, str]], None]]:
    """Return what starts the process: an interpreter that finds the call in a file, and writes the outcome to another."""
    request = _request(call)
    handle, path = tempfile.mkstemp(prefix="letitloop-call-")
    os.close(handle)
    try:

        def start(child: Child, told: dict[str, str]) -> None:
            import json

            from letitloop.supervision.program import interpreter
            from letitloop.supervision.watcher import run_fresh

            environment = {**os.environ, **told}
            if call.dumps:
                environment.setdefault("PYTHONFAULTHANDLER", "1")
            _unlink(path + ".out")
            _write(path, request)  # anew: whoever has read it removes it, since it may hold secrets and outlive a killed watcher
            child.result_file = path + ".out"
            words = [json.dumps(sys.path), path, str(child.group), str(os.getpid()), "guard" if child.gentle else "parent"]
            run_fresh(child, [*interpreter(), "-c", _PROGRAM, *words], environment)

        yield start
    finally:
        _unlink(path)
        _unlink(path + ".out")


def _write(path: str, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _request(call: Call) -> bytes:
    """Write down the call: where its function is found, its arguments, and what the main program was.

    Raises:
        InvalidArgument: the function cannot be found by its name, or an argument cannot be encoded.
    """
    from multiprocessing import spawn

    module, name = getattr(call.fn, "__module__", None), getattr(call.fn, "__qualname__", "")
    if not module or "<" in name or module not in sys.modules:
        raise InvalidArgument(
            f"supervise: {name or call.fn!r} is not at the top level of a module, where a fresh interpreter could find it. "
            'Nothing was started. Define it there, or decorate with start="fork" where the system has it.'
        )
    try:
        arguments = call.codecs.encode((call.args, call.kwargs), path="arguments")
    except UnencodableError as exc:
        raise InvalidArgument(
            f"supervise: an argument of {name} cannot be given to another process: {exc} Nothing was started."
        ) from exc
    prepared: dict[str, Any] = dict(spawn.get_preparation_data("supervised"))
    return default_codecs.encode(
        {
            "place": {key: prepared[key] for key in ("sys_path", "sys_argv", "orig_dir", "dir") if key in prepared},
            "main": _main_program(needed=module == "__main__"),
            "module": module,
            "file": getattr(sys.modules[module], "__file__", None),
            "name": name,
            "arguments": arguments,
        }
    )


def _main_program(*, needed: bool) -> tuple[str, str]:
    """Tell how the main program is found again: by a module's name, by a path, or as code.

    Args:
        needed: whether the function lies in it. Else it is left out where it is one that seldom expects to be imported.
    """
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name and name != "__main__":
        return ("module", name) if needed or not name.endswith(".__main__") else ("", "")
    path = getattr(main, "__file__", None) or getattr(getattr(main, "__loader__", None), "path", None)  # gone when it has ended
    if path:
        path = os.path.abspath(path)
        return ("path", path if os.path.exists(path) else os.path.dirname(path))  # else in a zip file, which is run as a whole
    return ("code", _code_of_main()) if needed else ("", "")


def _code_of_main() -> str:
    """Return the program of ``python -c``."""
    words = sys.orig_argv
    for number, word in enumerate(words[1:], 1):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c") and number + 1 < len(words):
            return words[number + 1]
    raise InvalidArgument(
        "supervise: a function that was typed in cannot be found by a fresh interpreter. Nothing was started. Put it into a file."
    )


def main(path: str, group: str, parent: str, dies_by: str) -> None:
    """Be the function's process."""
    if sys.platform != "win32":
        from letitloop.supervision.child import die_with_parent, prctl

        os.setpgid(0, int(group))
        die_with_parent(int(parent), prctl() if dies_by == "parent" else None)
    with open(path, "rb") as file:
        said: Any = default_codecs.decode(file.read())
    _unlink(path)
    data, code = _outcome(said)
    with open(path + ".tmp", "wb") as file:
        file.write(data)
    os.replace(path + ".tmp", path + ".out")
    sys.exit(code)


def _outcome(said: dict[str, Any]) -> tuple[bytes, int]:
    from letitloop.supervision.forked import outcome_of
    from letitloop.supervision.supervise import Call
    from letitloop.supervision.transfer import failed

    try:
        _prepare(said)
        function: Any = _module(said)
        for part in said["name"].split("."):
            function = getattr(function, part)
        spec = function.__letitloop_supervised__
        args, kwargs = spec.codecs.decode(said["arguments"])
        call = Call(spec.fn, tuple(args), dict(kwargs), spec.codecs, dumps=False)
    except BaseException as exc:
        return failed(exc, default_codecs), 1
    return outcome_of(call)


def _prepare(said: dict[str, Any]) -> None:
    """Let this interpreter be what the parent's was: its path, its arguments, its main program, which is imported."""
    import runpy
    from multiprocessing import process, spawn
    from types import ModuleType

    spawn.prepare(said["place"])
    kind, what = said["main"]
    if not kind:
        return
    module = ModuleType("__mp_main__")  # as for processes of multiprocessing, whose users know to guard what is not to run again
    current: Any = process.current_process()
    current._inheriting = True  # a main program without that guard is told so
    try:
        if kind == "code":
            sys.modules["__main__"] = sys.modules["__mp_main__"] = module
            exec(what, module.__dict__)  # noqa: S102 - the program of `python -c`, which the parent was given as well
        elif kind == "module":
            module.__dict__.update(runpy.run_module(what, run_name="__mp_main__", alter_sys=True))
        else:
            module.__dict__.update(runpy.run_path(what, run_name="__mp_main__"))
    finally:
        del current._inheriting
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    _call_main(vars(module))


def _call_main(names: dict[str, Any]) -> None:
    """Let the classes of the main program go by the names that they have in the parent, where their values are read."""
    if names.get("__name__") != "__mp_main__":
        return
    names["__name__"] = "__main__"
    pending = list(names.values())
    for one in pending:  # grows: classes lie in classes
        if isinstance(one, type) and one.__module__ == "__mp_main__":
            one.__module__ = "__main__"
            pending += vars(one).values()


def _module(said: dict[str, Any]) -> Any:
    name = said["module"]
    if name in ("__main__", "__mp_main__"):
        return sys.modules["__main__"]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if not said["file"]:
            raise
    from importlib import util

    # a module that was loaded from its file, as pytest and notebooks do
    spec = util.spec_from_file_location(name, said["file"])
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{said['file']} cannot be loaded as a module", name=name)
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
