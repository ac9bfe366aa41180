"""One file to make, and the system calls of the provider that makes it: others act between them, and it ends at them."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from letitloop.effects.provider import NotExecuted
from letitloop.effects.providers import FileProvider
from letitloop.effects.providers import file as module
from tests.effects.providers.interleaving import Crash, Steps, dispatch

ACTION = dispatch({"path": "a.txt", "content": "hello"})


@contextmanager
def steps(before):
    """Run ``before`` ahead of each system call of the provider."""
    watched = Steps(before)
    with pytest.MonkeyPatch.context() as patch:
        exclusive = watched.wrap("renameat2", module._rename_exclusively)
        patch.setattr(module, "os", watched)
        patch.setattr(module, "fcntl", watched)
        patch.setattr(module, "_rename_exclusively", exclusive)
        yield watched


def at(step, act):
    def before(count, name, args):
        if count == step:
            act()

    return before


def crash():
    raise Crash


def calls_of(verb, directory):
    """Count the system calls of one verb."""
    with steps(lambda *_: None) as watched:
        getattr(FileProvider(directory), verb)(ACTION)
    assert watched.count > 15
    return watched.count


def attempt(verb, directory, step):
    """Let one verb end at one of its system calls."""
    with steps(at(step, crash)), pytest.raises(Crash):
        getattr(FileProvider(directory), verb)(ACTION)


def certain(answer):
    return isinstance(answer, NotExecuted) and answer.kind == "tombstoned"
