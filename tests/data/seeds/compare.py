# Appended to an article's block, whose `model` it uses.
import keras
import numpy as np

from tests.equivalence.harness import assert_divided, compare, programs, values_of

x = np.random.default_rng(0).normal(size=(99, 100)).astype("float32")
y = np.eye(10, dtype="float32")[np.random.default_rng(1).integers(0, 10, size=99)]


def use(one):
    # 99 rows in batches of 45, 45 and 9: none of them divides by two.
    keras.utils.set_random_seed(2)
    return (
        one.fit(
            x, y, batch_size=45, epochs=2, validation_data=(x[:33], y[:33]), verbose=0
        ),
        one.evaluate(x, y, batch_size=45, verbose=0),
        one.predict(x, batch_size=45, verbose=0),
    )


plain = keras.Sequential.from_config(model.get_config())
plain.set_weights(model.get_weights())
values = []
for one in (plain, model):
    one.compile(loss="categorical_crossentropy", optimizer="sgd", metrics=["accuracy"])
    with programs() as seen:
        values.append(values_of(one, use(one)))
    print("devices of the steps:", sorted({p.partitions for p in seen.programs}))
compare(*values, tolerance=1e-5)
assert_divided(seen, devices=2, rows=[45, 9])
print("values compared:", len(values[0]))
