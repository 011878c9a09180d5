"""Heavy pages of some visitors do not hold up a light one of another."""

import threading
import time

from saddles.explorer import fair_pool
from saddles.explorer.fair_pool import FairPool


def order_of(patience, monkeypatch):
    """Eight heavy pages ask first, a light one last; the order in which they are computed."""
    monkeypatch.setattr(fair_pool, "PATIENCE", patience)
    pool, order, gate = FairPool(1), [], threading.Event()
    heavy, light = [pool.share("heavy") for _ in range(8)], pool.share("light")
    heavy[0].submit(time.sleep, 0.2).result(30)
    light.submit(time.sleep, 0.0).result(30)
    light.submit(gate.wait, 30)
    jobs = [share.submit(order.append, "heavy") for share in heavy]
    jobs.append(light.submit(order.append, "light"))
    gate.set()
    for job in jobs:
        job.result(30)
    pool.close()
    return order


def test_a_light_page_goes_before_heavy_ones_that_wait(monkeypatch):
    assert order_of(5.0, monkeypatch) == ["light", *["heavy"] * 8]


def test_a_heavy_page_is_not_overtaken_for_ever(monkeypatch):
    assert order_of(0.0, monkeypatch) == [*["heavy"] * 8, "light"]


def test_errors_and_cancelled_work_reach_their_page():
    pool = FairPool(1)
    share, gate = pool.share("any"), threading.Event()
    share.submit(gate.wait, 30)
    dropped, failing = share.submit(time.sleep, 60), share.submit(lambda: 1 / 0)
    assert dropped.cancel()
    gate.set()
    assert isinstance(failing.exception(30), ZeroDivisionError)
    pool.close()
