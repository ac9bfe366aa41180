"""The write-ahead log: one file of records, exact about what survives a crash.

``format`` has the bytes, ``files`` the system, ``log`` an open log, ``recovery`` how it is opened, ``repair`` how a damaged one is
rewritten, ``lock`` who works on it, ``seal`` its chain of codes.
"""
