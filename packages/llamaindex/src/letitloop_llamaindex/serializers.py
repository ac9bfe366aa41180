"""The serialiser of contexts that the program keeps itself: ``ctx.to_dict()``, and runs that continue a context."""

from __future__ import annotations

from typing import Any, cast

from workflows.context.serializers import BaseSerializer

from letitloop.codecs import default_codecs
from letitloop_llamaindex.ticks import TickCodec

__all__ = ["ExactSerializer"]


class ExactSerializer(BaseSerializer):
    """Turns values into text and back, exactly; what cannot be recorded is refused."""

    def serialize(self, value: Any) -> str:
        codec = TickCodec()
        body = codec.encode_value(value, "value")
        return default_codecs.encode([body, codec.take_new()]).hex()

    def deserialize(self, value: str) -> Any:
        codec = TickCodec()
        body, bodies = cast("tuple[bytes, list[bytes]]", default_codecs.decode(bytes.fromhex(value)))
        codec.take_in(bodies)
        return codec.decode_value(body)
