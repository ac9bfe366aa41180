"""Staying alive: a process that dies is started again, and its runs go on where their logs end.

``policy`` and ``deaths`` decide, and touch nothing. ``child`` is the one module that touches processes. ``watcher`` ties them:
``lil watch`` uses it for programs, ``supervise`` for functions.
"""
