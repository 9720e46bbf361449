"""Helper processes of the torch engine: how they start, meet, fail and end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.process.scripts import ROOT, output_of, run_python

pytest.importorskip("torch")
pytestmark = pytest.mark.process

WORKER = "tests.process.torch_worker"
POOL = f"""
import os, signal, sys, time
import torch
from keras_unison.engines.torch.processes.arena import HEAD
from keras_unison.engines.torch.processes.group import Aborted
from keras_unison.engines.torch.processes.pool import pool
from keras_unison.errors import HelperError
from {WORKER} import long_step, together
pool = pool()
"""


def run(code: str) -> str:
    return output_of(run_python(POOL + code, cwd=ROOT, KERAS_BACKEND="torch"))


def is_there(pid: int) -> bool:
    """Whether a process runs (one that has ended may still be listed)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("size", [2, 3])
def test_every_process_gets_the_same(size):
    run(f"""
group = pool.group({size})
pool.command({size}, "{WORKER}:meet", HEAD)
group.begin(HEAD)
own = together(group)
for theirs in pool.settle(60):
    for name, value in own.items():
        flat = value if isinstance(value, list) else [value]
        other = theirs[name] if isinstance(value, list) else [theirs[name]]
        for a, b in zip(flat, other, strict=True):
            same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
            assert same, name
ranks = range({size})
assert own["gather torch.int64"][:, 0].tolist() == [
    r % 2 + 1 for r in ranks for _ in range(2 + r)
]
one = [torch.arange(5.0) * 0.1 + r for r in ranks]
total, number, some, none = own["sum"]
assert torch.equal(total, sum(one[1:], one[0]))
assert number.item() == sum(r + 1 for r in ranks) and number.ndim == 0
assert torch.equal(some, one[1]) and none is None
large = [torch.arange(700_003.0) / 7 + r for r in ranks]
assert torch.equal(own["large"][0], sum(large[1:], large[0]))
assert own["large"][1] is None and torch.equal(own["large"][2], one[1])
assert own["same"] == {{"of": 0}}
""")


def test_a_long_step_uses_its_memory_again():
    run(f"""
from {WORKER} import use_again_after
use_again_after(1 << 25)
group = pool.group(2)
pool.command(2, "{WORKER}:meet_often", HEAD, 8)
group.begin(HEAD)
found = long_step(group, 8)
assert found == [2.0 * n + 1 for n in range(8)], found
assert pool.settle(60) == [found]
assert pool.arena.position < HEAD + (1 << 26)
""")


def test_helpers_are_used_again_and_know_nothing_of_the_script():
    run(f"""
pool.command(2, "{WORKER}:pid")
(first,) = pool.settle(60)
assert first != os.getpid() and first == pool.pids()[0]
pool.command(3, "{WORKER}:pid")
assert pool.settle(60)[0] == first and len(pool.pids()) == 2
pool.command(2, "{WORKER}:modules", ["tensorflow", "jax"])
assert pool.settle(60) == [[False, False]]
""")


def test_an_error_in_a_helper_is_told_and_the_helper_goes_on():
    run(f"""
group = pool.group(3)
pool.command(3, "{WORKER}:fail", 1)
begun = time.monotonic()
try:
    group.barrier()
    raise AssertionError
except Aborted:
    pass
try:
    pool.settle(60)
    raise AssertionError
except HelperError as error:
    assert "Replica 1 failed: ValueError: no such thing" in str(error), error
    assert "torch_worker.py" in str(error)
assert time.monotonic() - begun < 10
pids = pool.pids()
group.renew()
pool.command(3, "{WORKER}:pid")
assert pool.settle(60) == pids
""")


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_a_helper_that_ends_is_told_and_replaced(end):
    target = "sleep" if end == "kill" else "end"
    args = ", 60" if end == "kill" else ""
    run(f"""
group = pool.group(2)
(pid,) = pool.pids()
pool.command(2, "{WORKER}:{target}"{args})
if {end == "kill"}:
    os.kill(pid, signal.SIGKILL)
begun = time.monotonic()
try:
    group.barrier()
    raise AssertionError
except HelperError as error:
    text = str(error)
assert time.monotonic() - begun < 5
assert ("SIGKILL" if {end == "kill"} else "exit status is 3") in text, text
pool.command(2, "{WORKER}:pid")
assert pool.settle(60) == pool.pids() != [pid]
""")


def test_a_process_that_does_not_come_is_named():
    run(f"""
group = pool.group(3)
pool.command(3, "{WORKER}:sleep", 0)
group._limit = 1.0
pool.settle  # The other two wait for this one, which waits for nobody.
from keras_unison.engines.torch.processes.group import SharedGroup
late = SharedGroup(0, 3, pool.arena, limit=1.0)
late._arrived[0] = 5
try:
    late._wait(), late._wait(), late._wait()
    raise AssertionError
except HelperError as error:
    assert "Replica 1, 2 did not reach" in str(error), error
pool.stop()
""")


@pytest.mark.parametrize("how", ["kill", "interrupt", "exception"])
def test_no_helper_is_left(how):
    code = (
        POOL
        + f"""
pool.command(3, "{WORKER}:pid")
print(*pool.settle(60), flush=True)
pool.command(3, "{WORKER}:sleep", 60)
{"raise ValueError" if how == "exception" else "time.sleep(60)"}
"""
    )
    before = set(os.listdir("/dev/shm"))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("KERAS_")}
    parent = subprocess.Popen(
        [sys.executable, "-"],
        cwd=ROOT,
        env={**inherited, "KERAS_BACKEND": "torch", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(code)
    parent.stdin.close()
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    if how != "exception":
        assert all(map(is_there, pids))
        parent.send_signal(signal.SIGKILL if how == "kill" else signal.SIGINT)
    parent.wait(20)
    end = time.monotonic() + 5
    while any(map(is_there, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(is_there, pids))
    assert set(os.listdir("/dev/shm")) <= before
