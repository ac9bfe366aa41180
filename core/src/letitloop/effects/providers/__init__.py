"""Those who act on the outside world, ready made. Names resolve on first use: no provider loads what only another one needs.

``FileProvider``, ``SqliteProvider``, ``SmtpProvider`` and ``FunctionProvider`` need nothing beyond letitloop itself;
``HttpProvider`` needs the extra ``letitloop[http]``, and ``StripeProvider`` the extra ``letitloop[stripe]``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.effects.providers.file import FileProvider as FileProvider
    from letitloop.effects.providers.function import FunctionProvider as FunctionProvider
    from letitloop.effects.providers.http import HttpProvider as HttpProvider
    from letitloop.effects.providers.smtp import SmtpProvider as SmtpProvider
    from letitloop.effects.providers.sqlite_tx import SqliteProvider as SqliteProvider
    from letitloop.effects.providers.stripe import StripeProvider as StripeProvider

_HOME = {
    "FileProvider": "letitloop.effects.providers.file",
    "FunctionProvider": "letitloop.effects.providers.function",
    "HttpProvider": "letitloop.effects.providers.http",
    "SmtpProvider": "letitloop.effects.providers.smtp",
    "SqliteProvider": "letitloop.effects.providers.sqlite_tx",
    "StripeProvider": "letitloop.effects.providers.stripe",
}
__all__ = ["FileProvider", "FunctionProvider", "HttpProvider", "SmtpProvider", "SqliteProvider", "StripeProvider"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'letitloop.effects.providers' has no attribute {name!r}")
    import sys

    home = _HOME[name]
    __import__(home)
    value = getattr(sys.modules[home], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
