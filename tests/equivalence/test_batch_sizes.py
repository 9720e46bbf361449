"""Any batch size gives what one device gives, and is divided."""

import pytest

from tests.equivalence.harness import check, data, dense_model

# (rows in all, batch size, rows of batches that must be divided)
SIZES = {
    "even": (96, 48, [48]),
    "partial_last_batch": (99, 48, [48]),
    "partial_last_batch_is_divided_too": (70, 48, [48, 22]),
    "partial_first_batch": (33, 48, [33]),
    "a_size_that_never_divides": (200, 100, [100]),
    "odd_batches": (99, 31, [31]),
    "one_row_left": (49, 48, [48]),
}


@pytest.mark.parametrize("name", SIZES)
def test_fit_evaluate_and_predict_of_any_size(name: str, devices: int) -> None:
    rows, batch_size, divided = SIZES[name]
    x, y = data(rows)

    def use(model):
        return (
            model.fit(x, y, batch_size=batch_size, epochs=2, verbose=0),
            model.evaluate(x, y, batch_size=batch_size, verbose=0),
            model.predict(x, batch_size=batch_size, verbose=0),
        )

    check(dense_model, use, devices=devices, rows=divided)


@pytest.mark.parametrize("rows", [1, 2])
def test_fewer_rows_than_devices_after_a_divided_batch(rows: int, devices: int) -> None:
    x, y = data(48)

    def use(model):
        return (
            model.train_on_batch(x, y),
            model.train_on_batch(x[:rows], y[:rows]),
            model.predict(x[:1], verbose=0),
            model.test_on_batch(x[:rows], y[:rows]),
        )

    check(dense_model, use, devices=devices, rows=[48])
