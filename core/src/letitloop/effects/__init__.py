"""Acting on the outside world, so that a crash repeats nothing: markers, on the store's ledger file."""
