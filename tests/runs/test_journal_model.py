"""The journal against a list: any mix of crashes, failures, reorderings, changed arguments and rewinds."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from letitloop import MemoryStore, StepChanged, durable, step
from letitloop.runs.history import rewind_run
from tests.runs.helpers import Crash, crash

NAMES = st.sampled_from(["a", "b", "c#/>%"])
ARGUMENTS = st.integers(0, 3)


class Record:
    """What the model knows of a record: ``value`` None stands for a failure.

    ``ended`` tells of each drive that this failure ended how many records there were then.
    """

    def __init__(self, name, ordinal, argument, value):
        self.name, self.ordinal, self.argument, self.value = name, ordinal, argument, value
        self.ended = []


class Model:
    """The rules of recall, on a list of records in the order in which they were made."""

    def __init__(self):
        self.records = []
        self.taken = []

    def begin(self):
        self.taken = []
        self.ordinals = {}
        self.last = self.records[-1] if self.records else None

    def expect(self, name, argument):
        """Return ``("recorded", candidates)``, ``("changed", None)`` or ``("new", None)``, and note the ordinal."""
        self.ordinals[name] = ordinal = self.ordinals.get(name, 0) + 1
        own = self._standing(name, ordinal)
        if own and own[-1].argument == argument:
            return self._answer([own[-1]])
        ordinals = {record.ordinal for record in self.records if record.name == name}
        others = [record for other in ordinals for record in self._standing(name, other) if record.argument == argument]
        if others:
            return self._answer(others)
        return ("changed", None) if own else ("new", None)

    def _standing(self, name, ordinal):
        """The records of a key that have not answered; a failure that was tried again gives way to what came of it."""
        found = [r for r in self.records if (r.name, r.ordinal) == (name, ordinal) and r not in self.taken]
        return [r for i, r in enumerate(found) if r.value is not None or i == len(found) - 1]

    def _answer(self, candidates):
        failure = candidates[0] if candidates[0].value is None else None
        if failure is not None and (failure.ended or failure is self.last):
            self.taken.append(failure)  # it ended a drive, or nothing came after it: it is tried again
            return "new", None
        return "recorded", candidates

    def record(self, name, argument, value):
        self.records.append(Record(name, self.ordinals[name], argument, value))
        self.taken.append(self.records[-1])
        return self.records[-1]

    def rewind(self, record):
        first = next(r for r in self.records if (r.name, r.ordinal) == (record.name, record.ordinal))
        at = self.records.index(first)
        del self.records[at:]
        for other in self.records:  # a drive that ended later is as if it had not been
            other.ended = [records for records in other.ended if records <= at]


class JournalMachine(RuleBasedStateMachine):
    """Drives a script; the script changes between the drives."""

    @initialize()
    def start(self):
        self.store = MemoryStore()
        self.model = Model()
        self.script = []  # (name, argument, fails)
        self.made = self.failing = 0
        self.run = durable(store=self.store, goal_id="g", sync="process")(lambda: self.body())

    # --- the script ------------------------------------------------------------------------------------------------------------

    @rule(name=NAMES, argument=ARGUMENTS, at=st.integers(0, 20))
    def insert(self, name, argument, at):
        self.script.insert(at % (len(self.script) + 1), (name, argument, False))

    @rule(at=st.integers(0, 20))
    def insert_failure(self, at):
        # of a name of its own: a failure under a key that another ordinal's success was recorded for is not modelled
        self.failing += 1
        self.script.insert(at % (len(self.script) + 1), (f"failing-{self.failing}", 0, True))

    @precondition(lambda self: len(self.script) > 1)
    @rule(data=st.data())
    def reorder(self, data):
        self.script = data.draw(st.permutations(self.script))

    @precondition(lambda self: self.script)
    @rule(at=st.integers(0, 20), argument=ARGUMENTS)
    def change(self, at, argument):
        name, _, fails = self.script[at % len(self.script)]
        if not fails:
            self.script[at % len(self.script)] = (name, argument, fails)

    @precondition(lambda self: self.script)
    @rule(at=st.integers(0, 20))
    def remove(self, at):
        del self.script[at % len(self.script)]

    # --- drives ----------------------------------------------------------------------------------------------------------------

    def call(self, name, argument, fails):
        """One step, held against the model; tells whether its failure was raised."""
        expected, candidates = self.model.expect(name, argument)
        called = []

        def work(argument):
            called.append(argument)
            self.made += 1
            if fails:
                raise ValueError(self.made)
            return self.made

        try:
            value = step(name, work, argument)
        except ValueError as exc:
            failure = exc
        except StepChanged:
            assert expected == "changed"
            assert not called
            raise
        else:
            failure = None
        assert expected != "changed"
        assert called == ([argument] if expected == "new" else [])
        if expected == "new":
            self.model.record(name, argument, None if failure is not None else value)
        elif failure is not None:
            assert [record.value for record in candidates] == [None]
            self.model.taken.append(candidates[0])
        else:
            self.model.taken.append(next(record for record in candidates if record.value == value))
        return failure

    @rule(at=st.integers(0, 20))
    def drive_and_crash(self, at):
        self.model.begin()

        def body():
            for one in self.script[:at]:
                self.call(*one)
            crash()

        self.body = body
        try:
            self.run()
        except (Crash, StepChanged):
            pass

    @precondition(lambda self: any(fails for _, _, fails in self.script))
    @rule()
    def drive_until_a_failure_ends_it(self):
        self.model.begin()

        def body():
            for one in self.script:
                failure = self.call(*one)
                if failure is not None:
                    raise failure

        self.body = body
        try:
            self.run()
        except StepChanged:
            pass
        except ValueError:
            last = self.model.taken[-1]
            last.ended.append(len(self.model.records))

    @precondition(lambda self: self.model.records)
    @rule(at=st.integers(0, 20))
    def rewind(self, at):
        record = self.model.records[at % len(self.model.records)]
        names = self.store.names("runs")
        assert len(names) == 1
        escaped = record.name.replace("%", "%25").replace("/", "%2F").replace("#", "%23").replace(">", "%3E")
        rewind_run(self.store, names[0], escaped if record.ordinal == 1 else f"{escaped}#{record.ordinal}")
        self.model.rewind(record)

    # --- always ----------------------------------------------------------------------------------------------------------------

    @invariant()
    def the_log_holds_what_the_model_holds(self):
        if not getattr(self, "store", None) or not self.store.names("runs"):
            return
        shown = self.run.runs.show()
        assert [record.status for record in shown.steps] == ["failed" if r.value is None else "ok" for r in self.model.records]


JournalMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestJournal = JournalMachine.TestCase
