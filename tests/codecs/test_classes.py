"""Classes: found without importing, rebuilt without running their code, and what happens when they change."""

from __future__ import annotations

import dataclasses
import enum
import fractions
import subprocess
import sys
import textwrap
import types
from collections import namedtuple
from typing import NamedTuple

import attrs
import pydantic
import pytest

from letitloop.codecs import Codecs, default_codecs
from letitloop.errors import DecodeError, InvalidArgument, SchemaChanged, UnencodableError, UnknownType
from tests.codecs import shapes as s


@pytest.fixture
def module(monkeypatch):
    """A module whose classes a test may exchange."""
    made = types.ModuleType("shop_models")
    monkeypatch.setitem(sys.modules, "shop_models", made)
    return made


def put(module, cls, name="Order"):
    cls.__module__, cls.__qualname__, cls.__name__ = module.__name__, name, name
    setattr(module, name, cls)
    return cls


def make(kind, **fields):
    """A class of a kind with the given fields and defaults."""
    if kind == "dataclass":
        return dataclasses.make_dataclass("Order", [(n, object, dataclasses.field(default=v)) for n, v in fields.items()])
    if kind == "slots":
        return dataclasses.make_dataclass(
            "Order", [(n, object, dataclasses.field(default=v)) for n, v in fields.items()], slots=True
        )
    if kind == "attrs":
        return attrs.make_class("Order", {n: attrs.field(default=v) for n, v in fields.items()})
    if kind == "namedtuple":
        return namedtuple("Order", list(fields), defaults=list(fields.values()))  # noqa: PYI024 - fields are arguments
    return pydantic.create_model("Order", **{n: (object, v) for n, v in fields.items()})


KINDS = ["dataclass", "slots", "attrs", "namedtuple", "pydantic"]


@pytest.mark.parametrize("kind", KINDS)
def test_other_fields_are_named(module, kind):
    data = default_codecs.encode([put(module, make(kind, a=1, b=2))()])
    put(module, make(kind, a=1, c=2, d=3))
    for _ in range(2):
        with pytest.raises(SchemaChanged, match=r"'shop_models:Order'.*lacks b and the class has the new c, d.*migrate=") as caught:
            Codecs().decode(data)
        assert (caught.value.missing, caught.value.added, caught.value.tag) == (("b",), ("c", "d"), "shop_models:Order")


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_class_is_noticed_by_codecs_that_know_the_old_one(module, kind):
    codecs = Codecs()
    data = codecs.encode(put(module, make(kind, a=1))())
    assert codecs.decode(data).a == 1
    new = put(module, make(kind, a=1))
    assert type(codecs.decode(data)) is new
    put(module, make(kind, b=1))
    with pytest.raises(SchemaChanged):
        codecs.decode(data)
    del module.Order
    with pytest.raises(UnknownType):
        codecs.decode(data)


@pytest.mark.parametrize("kind", KINDS)
def test_migrate_brings_old_records_up_to_date(module, kind):
    codecs = Codecs()
    data = codecs.encode(put(module, make(kind, a=1, b=2))())
    new = put(module, make(kind, a=1, total=0))
    seen = []

    def migrate(fields, version):
        seen.append((fields, version))
        return {"a": fields["a"], "total": fields["b"]}

    codecs.register(new, version=2, migrate=migrate)
    order = codecs.decode(data)
    assert type(order) is new
    assert (order.a, order.total) == (1, 2)
    assert seen == [({"a": 1, "b": 2}, 1)]
    now = codecs.encode(order)
    assert codecs.decode(now) == order
    assert len(seen) == 1
    codecs.register(new, version=3)
    with pytest.raises(SchemaChanged, match="recorded in version 2, while version 3"):
        codecs.decode(now)
    codecs.register(new, version=3, migrate=lambda fields, version: {"a": 1})
    with pytest.raises(SchemaChanged, match="new total"):
        codecs.decode(now)
    codecs.register(new, version=3, migrate=lambda fields, version: 1 / 0)
    with pytest.raises(SchemaChanged, match="ZeroDivisionError"):
        codecs.decode(now)
    codecs.register(new, version=3, migrate=lambda fields, version: None)
    with pytest.raises(SchemaChanged, match="not a dict"):
        codecs.decode(now)


def test_migrate_across_kinds(module):
    codecs = Codecs()
    data = codecs.encode(put(module, make("dataclass", a=1))())
    new = put(module, make("pydantic", a=0))
    with pytest.raises(SchemaChanged, match="was a dataclass when it was recorded, and is a pydantic model now"):
        codecs.decode(data)
    codecs.register(new, version=2, migrate=lambda fields, version: fields)
    assert codecs.decode(data) == new(a=1)


def test_an_unknown_class_is_named_with_the_way_out(module):
    data = default_codecs.encode(put(module, make("dataclass", a=1))())
    del module.Order
    with pytest.raises(UnknownType, match=r"'shop_models:Order'.*register\(TheClass, name='shop_models:Order'\)") as caught:
        default_codecs.decode(data)
    assert caught.value.tag == "shop_models:Order"
    codecs = Codecs()
    moved = make("dataclass", a=0)
    codecs.register(moved, name="shop_models:Order")
    assert codecs.decode(data) == moved(1)


def test_nothing_is_imported(tmp_path):
    (tmp_path / "models.py").write_text("import dataclasses\n@dataclasses.dataclass\nclass Order:\n    a: int\n")
    write = "import sys, models; from letitloop.codecs import *; sys.stdout.write(default_codecs.encode(models.Order(1)).hex())"
    data = subprocess.run([sys.executable, "-c", write], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    read = f"""
    import sys
    from letitloop.codecs import default_codecs
    from letitloop.errors import UnknownType
    data = bytes.fromhex({data!r})
    try:
        default_codecs.decode(data)
    except UnknownType as error:
        assert "Import models" in str(error), error
    else:
        raise SystemExit("decoded")
    assert "models" not in sys.modules
    import models
    assert default_codecs.decode(data) == models.Order(1)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(read)], cwd=tmp_path, check=True)


def test_numpy_is_not_imported():
    import numpy

    data = [default_codecs.encode(numpy.arange(3)).hex(), default_codecs.encode(numpy.int64(3)).hex()]
    read = f"""
    import sys
    from letitloop.codecs import default_codecs
    from letitloop.errors import UnknownType
    for data in {data!r}:
        try:
            default_codecs.decode(bytes.fromhex(data))
        except UnknownType as error:
            assert "import numpy" in str(error), error
        else:
            raise SystemExit("decoded")
    assert "numpy" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(read)], check=True)


def test_classes_of_the_main_module(tmp_path):
    script = tmp_path / "app.py"
    script.write_text(
        textwrap.dedent("""
        import dataclasses, enum, pathlib, sys
        from letitloop.codecs import default_codecs
        @dataclasses.dataclass
        class Order:
            a: int
        class Kind(enum.Flag):
            A = 1
            B = 2
        value = [Order(1), Kind.A | Kind.B]
        file = pathlib.Path(sys.argv[0]).with_name("data")
        if file.exists():
            assert default_codecs.decode(file.read_bytes()) == value
            print("again")
        else:
            file.write_bytes(default_codecs.encode(value))
        """)
    )
    run = lambda: subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout  # noqa: E731
    assert run() == ""
    assert run() == "again\n"


# --- classes that cannot be found again ---


def test_a_local_class_is_refused_at_encode():
    @dataclasses.dataclass
    class Local:
        a: int

    class LocalEnum(enum.Enum):
        A = 1

    class LocalTuple(NamedTuple):
        a: int

    for value in (Local(1), LocalEnum.A, LocalTuple(1)):
        with pytest.raises(UnencodableError, match=r"result\['k'\].*inside a function.*module level.*register\("):
            default_codecs.encode({"k": value})
    codecs = Codecs()
    codecs.register(Local)
    assert codecs.decode(codecs.encode(Local(1))) == Local(1)


def test_a_class_under_another_name_is_refused_at_encode(module):
    order = put(module, make("dataclass", a=1))()
    put(module, make("dataclass", a=1))
    with pytest.raises(UnencodableError, match=r"shop_models has no such class under the name Order.*name="):
        default_codecs.encode(order)
    module.Order = 5
    with pytest.raises(UnencodableError):
        default_codecs.encode(order)


# --- enums ---


def test_enums_that_change(module):
    codecs = Codecs()
    old = put(module, enum.Enum("Order", "OPEN DONE"))
    data, flags = codecs.encode(old.DONE), put(module, enum.Flag("Bits", "A B C"), "Bits")
    combination = codecs.encode(flags.A | flags.C)
    new = put(module, enum.Enum("Order", "OPEN CLOSED"))
    put(module, enum.Flag("Bits", "A B"), "Bits")
    with pytest.raises(SchemaChanged, match="no member 'DONE'") as caught:
        codecs.decode(data)
    assert caught.value.missing == ("DONE",)
    with pytest.raises(SchemaChanged, match="no member 5"):
        codecs.decode(combination)
    codecs.register(new, version=2, migrate=lambda fields, version: {"name": {"DONE": "CLOSED"}[fields["name"]]})
    assert codecs.decode(data) is new.CLOSED
    assert codecs.decode(codecs.encode(new.OPEN)) is new.OPEN
    put(module, make("dataclass", a=1))
    with pytest.raises(SchemaChanged, match="enum"):
        Codecs().decode(data)


# --- registration ---


def test_a_class_without_fields_needs_functions():
    codecs = Codecs()
    with pytest.raises(UnencodableError, match=r"fractions.Fraction exactly: .*register\(Fraction, encode=..., decode=...\)"):
        codecs.encode(fractions.Fraction(1, 3))
    with pytest.raises(InvalidArgument, match="encode="):
        codecs.register(fractions.Fraction)
    codecs.register(
        fractions.Fraction, encode=lambda f: (f.numerator, bytearray(b"x")), decode=lambda body: fractions.Fraction(body[0])
    )
    assert codecs.decode(codecs.encode({(fractions.Fraction(4),): 1})) == {(fractions.Fraction(4),): 1}


def test_subclasses_of_plain_types_can_be_registered():
    codecs = Codecs()
    codecs.register(s.MyStr, encode=str, decode=s.MyStr)
    codecs.register(s.MyInt, encode=int, decode=s.MyInt)
    codecs.register(s.MyList, encode=list, decode=s.MyList)
    value = {s.MyStr("k"): [s.MyInt(3), s.MyList([1, (2,)])]}
    again = codecs.decode(codecs.encode(value))
    assert again == value
    assert [type(key) for key in again] == [s.MyStr]
    assert [type(item) for item in again["k"]] == [s.MyInt, s.MyList]
    with pytest.raises(UnencodableError, match="subclass of str"):
        default_codecs.encode(s.MyStr("k"))


def test_functions_that_fail_are_named():
    codecs = Codecs()
    codecs.register(s.Plain, encode=lambda p: 1 / p.x, decode=lambda body: s.Plain(1 / body))
    with pytest.raises(UnencodableError, match=r"result\[1\]: cannot record .*ZeroDivisionError") as caught:
        codecs.encode([1, s.Plain(0)])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    data = codecs.encode(s.Plain(float("inf")))
    with pytest.raises(DecodeError, match=r"decode function registered for .*ZeroDivisionError"):
        codecs.decode(data)
    codecs.register(s.Plain, encode=lambda p: object(), decode=s.Plain)
    with pytest.raises(UnencodableError, match=r"result \(as its registered encode function gives it\): cannot record object"):
        codecs.encode(s.Plain())
    codecs.register(s.Plain, encode=lambda p: p, decode=s.Plain)
    with pytest.raises(UnencodableError, match="cycle"):
        codecs.encode(s.Plain())


def test_versions_of_registered_functions():
    codecs = Codecs()
    codecs.register(s.Plain, encode=lambda p: p.x, decode=s.Plain)
    data = codecs.encode(s.Plain(4))
    codecs.register(s.Plain, encode=lambda p: {"x": p.x}, decode=lambda body: s.Plain(body["x"]), version=2)
    with pytest.raises(SchemaChanged):
        codecs.decode(data)
    codecs.register(
        s.Plain,
        encode=lambda p: {"x": p.x},
        decode=lambda body: s.Plain(body["x"]),
        version=2,
        migrate=lambda body, version: {"x": body},
    )
    assert codecs.decode(data).x == 4


def test_a_name_belongs_to_one_class():
    codecs = Codecs()
    codecs.register(s.DC, name="order")
    codecs.register(s.DC, name="order", version=2)
    with pytest.raises(InvalidArgument, match="belongs to"):
        codecs.register(s.Slots, name="order")
    codecs.register(s.DC, name="order/2", migrate=lambda fields, version: fields)
    assert b"order/2" in codecs.encode(s.DC(1, 2))
    with pytest.raises(UnknownType):
        default_codecs.decode(codecs.encode(s.DC(1, 2)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cls": 5}, "give a class"),
        ({"cls": int}, "recorded exactly"),
        ({"cls": tuple}, "recorded exactly"),
        ({"cls": dict, "encode": list, "decode": dict}, "recorded exactly"),
        ({"cls": s.Plain, "encode": str}, "belong together"),
        ({"cls": s.Plain, "decode": str}, "belong together"),
        ({"cls": s.DC, "version": 0}, "version"),
        ({"cls": s.DC, "version": True}, "version"),
        ({"cls": s.DC, "name": ""}, "name"),
        ({"cls": s.DC, "name": 5}, "name"),
        ({"cls": s.ErrorLike}, "as well"),
    ],
)
def test_registrations_that_cannot_work(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        Codecs().register(**arguments)


def test_own_codecs_fall_back_to_the_default_ones():
    mine = Codecs()

    @default_codecs.register(name="tests.fallback", encode=lambda t: t.x, decode=lambda x: Thing(x))
    class Thing:
        def __init__(self, x):
            self.x = x

    assert mine.decode(default_codecs.encode(Thing(5))).x == 5
    assert default_codecs.decode(mine.encode(Thing(5))).x == 5
    mine.register(Thing, name="tests.mine", encode=lambda t: t.x, decode=lambda x: Thing(-x))
    assert mine.decode(mine.encode(Thing(5))).x == -5
    assert mine.decode(default_codecs.encode(Thing(5))).x == 5


def test_a_registration_after_use_counts():
    mine = Codecs()
    first = mine.encode(s.Slots(1, 2))
    mine.fingerprint((s.Slots(1, 2),), {})
    mine.register(s.Slots, name="slots")
    assert mine.encode(s.Slots(1, 2)) != first
    assert mine.decode(first) == mine.decode(mine.encode(s.Slots(1, 2))) == s.Slots(1, 2)


def test_no_code_of_a_class_runs():
    data = default_codecs.encode([s.Hostile(-1), s.PStrict(a=6), s.PStrict(a=7), s.Loud.ONE])
    assert [type(x) for x in default_codecs.decode(data)] == [s.Hostile, s.PStrict, s.PStrict, s.Loud]
    forged = data.replace(b"\xa1a\xff", b"\xa1a\x08").replace(b"\xa1a\x06", b"\xa1a\x63").replace(b"\xa1a\x07", b"\xa1a\x05")
    assert [x.a for x in default_codecs.decode(forged)[:3]] == [8, 99, 5]


def test_a_property_in_place_of_a_field_is_passed_by(module):
    order = put(module, make("dataclass", a=1))()
    data = default_codecs.encode(order)
    calls = []
    module.Order.a = property(lambda self: calls.append("get"), lambda self, value: calls.append("set"))
    decoded = default_codecs.decode(data)
    default_codecs.encode(decoded)
    assert calls == []
    assert vars(decoded) == {"a": 1}


def test_a_hash_is_not_carried_into_another_process():
    value = s.ATHash("a")
    before = default_codecs.encode(value)
    hash(value)
    assert default_codecs.encode(value) == before
    assert hash(default_codecs.decode(before)) == hash(value)
