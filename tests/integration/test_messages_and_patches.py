"""What errors tell an adapter's user to type, and what is taken back when an agent is unwrapped."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from letitloop import LogLocked, StepChanged
from letitloop.integration.leaves import leaf
from letitloop.integration.patching import Patches
from letitloop.integration.sessions import Session


def test_a_command_is_quoted_as_a_shell_takes_it(tmp_path):
    for prompt in ("one", "two"):
        with Session("s", store=tmp_path) as session:
            if prompt == "one":
                leaf(session.root(), "tool mail", {"prompt": prompt}, lambda: 1)
            else:
                with pytest.raises(StepChanged, match=r"\"lil rewind \S+ 'tool mail'.*\" voids"):
                    leaf(session.root(), "tool mail", {"prompt": prompt}, lambda: 1)


def test_what_somebody_has_replaced_since_stays():
    one, models, patches = SimpleNamespace(client="stock"), {"fast": "stock", "gone": "stock"}, Patches()
    patches.replace(one, "client", lambda _: "first")
    kept = len(patches)
    patches.replace_item(models, "fast", "durable")
    patches.replace_item(models, "gone", "durable")
    models["fast"] = "another"
    del models["gone"]
    patches.undo(kept)
    assert (one.client, models) == ("first", {"fast": "another"})
    one.client = "second"
    patches.undo()
    assert one.client == "second"


def test_what_was_added_is_taken_away():
    one, other, patches = SimpleNamespace(), SimpleNamespace(), Patches()
    patches.add(one, "extra", "durable")
    patches.add(other, "extra", "durable")
    assert one.extra == "durable"
    other.extra = "somebody's"
    patches.undo()
    assert not hasattr(one, "extra")
    assert other.extra == "somebody's"


def test_a_locked_log_is_told_to_adapters_and_functions(tmp_path):
    from letitloop import durable

    @durable(goal_id="g", store=tmp_path)
    def other():
        raise AssertionError("it is driven already")

    @durable(goal_id="g", store=tmp_path)
    def one():
        import threading

        caught = []

        def work():
            with pytest.raises(LogLocked) as locked:
                other()
            caught.append(str(locked.value))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return caught[0]

    assert 'Wait for it to end, or have a decorated function wait for it: on_locked="wait".' in one()
