from __future__ import annotations
import time
from tests.processes.group import Group

def test_meet():
    t=time.time()
    with Group(4) as g:
        print(g.run("devices"), time.time()-t)
        t=time.time()
        print(g.run("meet", rounds=3), time.time()-t)
        t=time.time()
        print(g.run("meet", rounds=30), time.time()-t)
    print(time.time()-t)
    t=time.time()
    with Group(2) as g:
        print(g.run("devices"), time.time()-t)
