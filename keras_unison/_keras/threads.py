"""What Keras keeps for each thread by itself."""

from typing import Any


def state_of_thread() -> dict[str, Any]:
    """Keras's state in this thread: scopes, policies, the global seed generator.

    Keras keeps it in a `threading.local`, so that a new thread begins without it.
    """
    from keras.src.backend.common import global_state

    return dict(global_state.GLOBAL_STATE_TRACKER.__dict__)


def set_state_of_thread(state: dict[str, Any]) -> None:
    """Gives this thread the state of another."""
    from keras.src.backend.common import global_state

    global_state.GLOBAL_STATE_TRACKER.__dict__.clear()
    global_state.GLOBAL_STATE_TRACKER.__dict__.update(state)
