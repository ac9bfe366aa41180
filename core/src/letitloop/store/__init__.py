"""Where logs and the ledger live: the ``Store`` protocol, a directory store, a memory store."""
