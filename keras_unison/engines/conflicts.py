"""Other owners of placement that cannot be active beside an engine."""

import sys

import keras

from keras_unison.errors import PlacementError


def refuse_other_strategies() -> None:
    """Refuses to work under a strategy that places variables and data too.

    Raises:
        PlacementError: A keras.distribution or tf.distribute strategy is active.
    """
    distribution = keras.distribution.distribution()
    if distribution is not None:
        raise PlacementError(
            f"keras_unison and keras.distribution ({type(distribution).__name__}) "
            "both place variables and data; only one of them can. Call "
            "`keras.distribution.set_distribution(None)`, or leave the model plain."
        )
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.distribute.has_strategy():
        strategy = tensorflow.distribute.get_strategy()
        raise PlacementError(
            f"keras_unison and tf.distribute ({type(strategy).__name__}) both place "
            "variables and data; only one of them can. Leave the strategy's "
            "`scope()`, or leave the model plain."
        )
