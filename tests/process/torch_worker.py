"""Functions that helper processes run in tests."""

import os
import time
from typing import Any

import torch


def pid(context: Any, group: Any) -> int:
    return os.getpid()


def modules(context: Any, group: Any, names: list[str]) -> list[bool]:
    import sys

    return [name in sys.modules for name in names]


def fail(context: Any, group: Any, rank: int) -> None:
    if context.rank == rank:
        raise ValueError("no such thing")
    group.barrier()


def sleep(context: Any, group: Any, seconds: float) -> None:
    time.sleep(seconds)
    group.barrier()


def end(context: Any, group: Any) -> None:
    time.sleep(1.0)
    os._exit(3)


def together(group: Any) -> dict[str, Any]:
    """One of each kind of meeting; what each process gets."""
    rank, size = group.rank, group.size
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
    lengths = [2 + r for r in range(size)]
    found: dict[str, Any] = {}
    for kind in kinds:
        part = torch.full((lengths[rank], 3), rank % 2 + 1).to(kind)
        found[f"gather {kind}"] = group.gather(part, lengths)
    found["no rows"] = group.gather(torch.zeros(0, 4), [0] * size)
    strided = torch.arange(6.0).reshape(2, 3).T + rank
    found["strided"] = group.gather(strided, [3] * size)
    one, number = torch.arange(5.0) * 0.1 + rank, torch.tensor(float(rank + 1))
    some = one if rank == 1 else None
    likes = [one, number, one, one]
    found["sum"] = group.sum([one, number, some, None], likes)
    large = torch.arange(700_003.0) / 7 + rank
    found["large"] = group.sum([large, None, some], [large, one, one])
    found["same"] = group.same_for_all({"of": rank})
    return found


def meet(context: Any, group: Any, position: int) -> dict[str, Any]:
    group.begin(position)
    return together(group)


def long_step(group: Any, times: int) -> list[float]:
    part = torch.ones(1 << 20)
    return [
        float(group.sum([part * (n + group.rank)], [part])[0].mean())
        for n in range(times)
    ]


def meet_often(context: Any, group: Any, position: int, times: int) -> list[float]:
    use_again_after(1 << 25)
    group.begin(position)
    return long_step(group, times)


def use_again_after(amount: int) -> None:
    """Lets a step use its memory again after so many bytes."""
    from keras_unison.engines.torch.processes import group

    group._REUSED_AFTER = amount


def size_of(context: Any, group: Any, data: Any) -> int:
    return len(data)


def not_to_pickle(context: Any, group: Any) -> Any:
    return lambda: 0


def meet_later(context: Any, group: Any, rank: int, seconds: float) -> None:
    if context.rank == rank:
        time.sleep(seconds)
    group.barrier()


def leave_a_child(context: Any, group: Any, seconds: float) -> None:
    if os.fork() == 0:
        time.sleep(seconds)
        os._exit(0)
    os._exit(7)
