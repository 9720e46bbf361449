"""The only package that touches what Keras does not promise.

Each touch says why it is needed; `tests/unit/test_keras_internals.py` fails with a
clear message when a Keras release changes one. keras is imported inside functions, so
that the command line can start without it.
"""

from keras_unison._keras.hooks import replace_once
from keras_unison._keras.jax import (
    STATE_PARTS,
    forget_pending_state,
    is_synced,
    jax_trainer_hooks,
    pending_state,
    publish_state,
    replace_source,
    set_pending_state,
    state_dict,
)
from keras_unison._keras.layers import (
    batch_axes,
    build_by_call,
    computed_in,
    copy_mask,
    get_logits,
    get_mask,
    hook_batch_moments,
    hook_calls,
    hook_random,
    hook_values,
    is_built,
    operations_of,
    replace_losses,
    set_logits,
    set_mask,
)
from keras_unison._keras.models import (
    TF_KERAS,
    explain_missing_attributes,
    forget_functions,
    let_callbacks_take_model,
    models_seen,
)
from keras_unison._keras.tensorflow import (
    FUNCTION_MAKERS,
    hook_functions,
    hook_slots,
    hook_updates,
    last_move,
    move_variable,
    slots_of,
    tensorflow_variable,
)
from keras_unison._keras.threads import set_state_of_thread, state_of_thread

__all__ = [
    "batch_axes",
    "build_by_call",
    "computed_in",
    "copy_mask",
    "get_logits",
    "get_mask",
    "hook_batch_moments",
    "hook_calls",
    "hook_random",
    "hook_values",
    "is_built",
    "operations_of",
    "replace_losses",
    "set_logits",
    "set_mask",
    "STATE_PARTS",
    "forget_pending_state",
    "is_synced",
    "jax_trainer_hooks",
    "pending_state",
    "publish_state",
    "replace_once",
    "replace_source",
    "set_pending_state",
    "state_dict",
    "FUNCTION_MAKERS",
    "hook_functions",
    "hook_slots",
    "hook_updates",
    "last_move",
    "move_variable",
    "slots_of",
    "tensorflow_variable",
    "TF_KERAS",
    "explain_missing_attributes",
    "forget_functions",
    "let_callbacks_take_model",
    "models_seen",
    "set_state_of_thread",
    "state_of_thread",
]
