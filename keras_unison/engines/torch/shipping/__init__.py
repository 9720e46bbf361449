"""Shipping a model to helper processes."""

from keras_unison.engines.torch.shipping.ship import Shipped, ship
from keras_unison.engines.torch.shipping.unpack import Unpacked, unpack

__all__ = ["Shipped", "Unpacked", "ship", "unpack"]
