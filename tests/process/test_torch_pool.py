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
from keras_unison.engines.torch.processes.arena import HEAD, Arena
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


def started(code: str, **environment: str) -> tuple["subprocess.Popen[str]", list[int]]:
    """A script on standard input that prints its helpers' numbers first; and these."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("KERAS_")}
    parent = subprocess.Popen(
        [sys.executable, "-", "parent"],
        cwd=ROOT,
        env={**inherited, "KERAS_BACKEND": "torch", **environment},
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
    return parent, pids


def assert_ended(parent: "subprocess.Popen[str]", pids: list[int]) -> None:
    """The script has ended, and its helpers with it."""
    parent.wait(20)
    end = time.monotonic() + 5
    while any(map(is_there, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(is_there, pids))


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
    # The third has met the others less often before.
    run(f"""
for _ in range(3):
    pool.command(2, "{WORKER}:meet_later", 0, 0)
    pool.group(2).barrier()
    pool.settle(60)
group = pool.group(3)
group._limit = 1.0
pool.command(3, "{WORKER}:meet_later", 1, 5)
try:
    group.barrier()
    raise AssertionError
except HelperError as error:
    assert "Replica 1 did not reach" in str(error), error
group.abort()
pool.stop()
""")


@pytest.mark.parametrize("what", ["argument", "result"])
def test_what_cannot_be_pickled_is_told_and_the_helper_goes_on(what):
    target = "size_of" if what == "argument" else "not_to_pickle"
    run(f"""
class Own: pass
(pid,) = pool.group(2) and pool.pids()
pool.command(2, "{WORKER}:{target}"{", Own()" if what == "argument" else ""})
try:
    pool.settle(60)
    raise AssertionError
except HelperError as error:
    assert "Replica 1 failed: " in str(error), error
pool.command(2, "{WORKER}:pid")
assert pool.settle(60) == [pid]
""")


def test_a_command_leaves_nothing_in_the_memory_of_a_helper():
    run(f"""
def held():
    with open(f"/proc/{{pool.pids()[0]}}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20
pool.command(2, "{WORKER}:pid")
pool.settle(60)
before = held()
pool.command(2, "{WORKER}:size_of", os.urandom(300 << 20))
assert pool.settle(60) == [300 << 20]
time.sleep(1)
assert held() < before + 100, (before, held())
""")


def test_a_helper_that_takes_no_message_is_told():
    run(f"""
from keras_unison.engines.torch.processes import messages
pool.command(2, "{WORKER}:pid")
pool.settle(60)
messages.PATIENCE = 2.0
(pid,) = pool.pids()
os.kill(pid, signal.SIGSTOP)
try:
    pool.command(2, "{WORKER}:size_of", bytes(64 << 20))
    raise AssertionError
except HelperError as error:
    assert "did not take" in str(error), error
pool.command(2, "{WORKER}:pid")
assert pool.settle(60) == pool.pids() != [pid]
""")


def test_a_helper_that_ends_is_told_while_another_still_computes():
    run(f"""
pool.command(3, "{WORKER}:pid")
pids = pool.settle(60)
pool.command(3, "{WORKER}:meet_later", 1, 60)
begun = time.monotonic()
os.kill(pids[1], signal.SIGKILL)
try:
    pool.settle(60)
    raise AssertionError
except HelperError as error:
    assert "replica 2 has ended" in str(error), error
assert time.monotonic() - begun < 5
""")


def test_a_helper_that_ends_is_told_though_its_own_child_lives():
    run(f"""
pool.group(2)
pool.command(2, "{WORKER}:leave_a_child", 8)
begun = time.monotonic()
try:
    pool.settle(60)
    raise AssertionError
except HelperError as error:
    assert "exit status is 7" in str(error), error
assert time.monotonic() - begun < 5
""")


def test_the_first_of_several_failures_is_told():
    run(f"""
pool.command(2, "{WORKER}:fail", 1)
pool.command(2, "{WORKER}:pid")
try:
    pool.settle(60)
    raise AssertionError
except HelperError as error:
    assert "no such thing" in str(error), error
group = pool.group(2)
pool.command(2, "{WORKER}:meet_later", 0, 0)
group.barrier()
assert pool.settle(60) == [None]
""")


def test_helpers_find_modules_where_the_script_does(tmp_path):
    (tmp_path / "found_later.py").write_text("def five(context, group): return 5")
    run(f"""
pool.group(2)
sys.path.append({str(tmp_path)!r})
pool.command(2, "found_later:five")
assert pool.settle(60) == [5]
""")


def test_helpers_import_what_the_script_imports_not_what_lies_in_its_folder(tmp_path):
    (tmp_path / "keras_unison").mkdir()
    (tmp_path / "keras_unison" / "__init__.py").write_text("raise ImportError")
    run(f"""
os.chdir({str(tmp_path)!r})
sys.path.remove("")
sys.path.append({str(ROOT)!r})
pool.command(2, "{WORKER}:pid")
assert pool.settle(60) == pool.pids()
""")


def test_a_forked_process_has_helpers_of_its_own():
    run(f"""
from keras_unison.engines.torch.processes import pool as module
pool.command(2, "{WORKER}:pid")
pids = pool.settle(60)
child = os.fork()
if child == 0:
    own = module.pool()
    os._exit(0 if own is not pool and own.arena is not pool.arena else 1)
assert os.waitpid(child, 0)[1] == 0
pool.command(2, "{WORKER}:pid")
assert pool.settle(60) == pids and module.pool() is pool
""")


@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_AS"])
def test_shared_memory_is_smaller_where_the_system_limits_it(limit):
    run(f"""
import resource
with open("/proc/self/statm") as file:
    mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
most = (20 << 30) + (mapped if {limit == "RLIMIT_AS"} else 0)
resource.setrlimit(resource.{limit}, (most, most))
arena = Arena.create()
assert 1 << 30 <= arena.size < 1 << 36
arena.take((8,), torch.float32).fill_(1)
""")


def test_memory_is_given_back_and_that_of_neighbours_stays():
    run("""
arena = Arena.create()
first = arena.take((1 << 20,), torch.float32).fill_(1)
end = arena.position = arena.position + 64
second = arena.take((1 << 20,), torch.float32).fill_(7)
before = os.fstat(arena.fd).st_blocks
arena.give_back(HEAD, end)
assert os.fstat(arena.fd).st_blocks < before - 8000
assert (second == 7).all() and first[0] == 0
""")


def test_parts_that_do_not_fit_are_refused():
    run("""
group = pool.group(2)
part = torch.ones(1, 3)
for call in (
    lambda: group.gather(part, [2, 2]),
    lambda: group.sum([part], [torch.ones(2, 3)]),
    lambda: group.sum([part], [part.double()]),
):
    try:
        call()
        raise AssertionError
    except HelperError as error:
        assert "Replica 0 brings" in str(error), error
""")


def test_helpers_end_with_a_parent_that_is_killed_while_they_import(tmp_path):
    # A package that takes long to import stands for Keras on a busy machine.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'keras_unison' and sys.argv == ['-c']:\n"
        "            time.sleep(30)\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    code = POOL + "pool.ensure(3); print(*pool.pids(), flush=True); time.sleep(60)"
    parent, pids = started(code, PYTHONPATH=f"{tmp_path}:{ROOT}")
    # Long enough for them to begin with it.
    time.sleep(2)
    assert all(map(is_there, pids))
    parent.kill()
    assert_ended(parent, pids)


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
    parent, pids = started(code, PYTHONPATH=str(ROOT))
    if how != "exception":
        assert all(map(is_there, pids))
        parent.send_signal(signal.SIGKILL if how == "kill" else signal.SIGINT)
    assert_ended(parent, pids)
    assert set(os.listdir("/dev/shm")) <= before
