"""Values to bytes and back, exactly; the registry of classes; fingerprints of arguments. Touches no file."""

from __future__ import annotations

from letitloop.codecs.codec import Codecs, default_codecs, register

__all__ = ["Codecs", "default_codecs", "register"]
