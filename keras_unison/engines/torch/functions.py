"""The dual pairs of the global view, as functions of torch's automatic differentiation.

Outside a layer call every process holds the same values; inside, each computes its
own rows. What crosses that border has a gradient that crosses it the other way: cut
and join, share and total. Within a call replicas meet in sums, whose gradient is the
sum of the gradients, and gather rows, whose gradient is summed and cut. Each is made
of the others, so that gradients of gradients need nothing more.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

Group = Any
Lengths = Sequence[int]


def cut(tensor: Any, group: Group, lengths: Lengths) -> Any:
    """The own rows of a tensor that all processes hold."""
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return _own(tensor, group, lengths)
    return _Cut.apply(tensor, group, tuple(lengths))


def join(part: Any, group: Group, lengths: Lengths) -> Any:
    """All rows, in every process, of which each brings its own."""
    return _Join.apply(part, group, tuple(lengths))


def share(tensors: Sequence[Any], group: Group) -> list[Any]:
    """Values that all processes hold, for each to use; gradients are summed."""
    return list(_Share.apply(group, *tensors)) if tensors else []


def total(tensors: Sequence[Any], group: Group) -> list[Any]:
    """The sum of what each process brings, a value that all hold then."""
    return list(_Total.apply(group, *tensors)) if tensors else []


def sum_within(tensors: Sequence[Any], group: Group) -> list[Any]:
    """The sum of what each replica brings, for each to use in its own way."""
    return list(_Sum.apply(group, *tensors))


def gather_within(part: Any, group: Group, lengths: Lengths) -> Any:
    """All rows, for each replica to use in its own way."""
    return _Gather.apply(part, group, tuple(lengths))


def one_of(tensor: Any, group: Group) -> Any:
    """What all replicas computed alike, as one value that all processes hold.

    Each replica may have met the others on the way, which it does in the gradient
    again, so that each gets its share of the gradient.
    """
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return tensor
    return _OneOf.apply(tensor, group)


def rounded_gradient(tensor: Any, dtype: torch.dtype) -> Any:
    """The tensor, whose gradient is rounded to a type as one device rounds it."""
    return _Rounded.apply(tensor, dtype)


def _own(tensor: Any, group: Group, lengths: Lengths) -> Any:
    begin = sum(lengths[: group.rank])
    return tensor[begin : begin + lengths[group.rank]]


def _like(tensors: Sequence[Any]) -> list[Any]:
    return [torch.empty_like(tensor, device="meta") for tensor in tensors]


class _Cut(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any, group: Group, lengths: Lengths) -> Any:
        ctx.call = (group, lengths)
        return _own(tensor, group, lengths).clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        return _Join.apply(upstream[0], *ctx.call), None, None


class _Join(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, part: Any, group: Group, lengths: Lengths) -> Any:
        ctx.call = (group, lengths)
        return group.gather(part, lengths)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        return _Cut.apply(upstream[0], *ctx.call), None, None


class _Share(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, group: Group, *tensors: Any) -> Any:
        ctx.group, ctx.like = group, _like(tensors)
        # A weight that this replica did not use has no gradient, unless another did.
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        return (None, *_TotalOf.apply(ctx.group, ctx.like, *upstream))


class _TotalOf(Function):  # type: ignore[misc]
    """`total` of tensors of known shapes, some of which may be missing."""

    @staticmethod
    def forward(ctx: Any, group: Group, like: Any, *tensors: Any) -> Any:
        ctx.group = group
        ctx.set_materialize_grads(False)
        return tuple(group.sum(tensors, like))

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        there = [tensor for tensor in upstream if tensor is not None]
        shared = iter(_Share.apply(ctx.group, *there) if there else ())
        found = [None if tensor is None else next(shared) for tensor in upstream]
        return (None, None, *found)


class _Total(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, group: Group, *tensors: Any) -> Any:
        ctx.group = group
        return tuple(group.sum(tensors, _like(tensors)))

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        return (None, *_Share.apply(ctx.group, *upstream))


class _Sum(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, group: Group, *tensors: Any) -> Any:
        ctx.group = group
        return tuple(group.sum(tensors, _like(tensors)))

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        return (None, *_Sum.apply(ctx.group, *upstream))


class _Gather(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, part: Any, group: Group, lengths: Lengths) -> Any:
        ctx.call = (group, lengths)
        return group.gather(part, lengths)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        return _SumOfOwn.apply(upstream[0], *ctx.call), None, None


class _SumOfOwn(Function):  # type: ignore[misc]
    """The sum over replicas, of which each keeps its own rows."""

    @staticmethod
    def forward(ctx: Any, whole: Any, group: Group, lengths: Lengths) -> Any:
        ctx.call = (group, lengths)
        (summed,) = group.sum([whole], _like([whole]))
        return _own(summed, group, lengths).clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        return _Gather.apply(upstream[0], *ctx.call), None, None


class _OneOf(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any, group: Group) -> Any:
        ctx.group = group
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        (shared,) = _Share.apply(ctx.group, upstream[0])
        return shared / ctx.group.size, None


class _Rounded(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any, dtype: torch.dtype) -> Any:
        ctx.dtype = dtype
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        return upstream[0].to(ctx.dtype).to(upstream[0].dtype), None
