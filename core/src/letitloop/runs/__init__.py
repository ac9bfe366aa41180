"""One execution: identity, journal, and the drivers for sync and async code.

A value's way: ``api`` reserves a call, ``run`` asks ``journal`` for it, ``plan`` says what is to be done, ``drive_sync`` or
``drive_async`` does it.
"""
