"""Hold all reader slots of LMDB that a process can get: STORE. Print their number; end with the input."""

import sys

import lmdb

held = []
for name in ("catalogue", "strong", "weak", "async"):
    environment = lmdb.open(f"{sys.argv[1]}/{name}", readonly=True, max_readers=1024, max_spare_txns=0)
    try:
        while True:
            held.append((environment, environment.begin()))
    except lmdb.ReadersFullError:
        pass
print(len(held), flush=True)
sys.stdin.read()
