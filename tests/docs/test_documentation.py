"""The documentation says what the code does, and its examples run."""

import re

import pytest

from keras_unison._versions import TESTED
from tests.process.scripts import NEEDS_TENSORFLOW, ROOT, on_both, output_of, run_python

pytestmark = pytest.mark.process

WITH_EXAMPLES = [
    "DataParallel",
    "MirroredStrategy",
    "devices",
    "multi_gpu_model",
    "simulate",
    "step",
]


@on_both
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_example_of_a_public_name_runs(name, backend):
    if (name, backend) == ("step", "tensorflow"):
        pytest.skip("its example is a step for JAX; the page has one for TensorFlow")
    code = f"""
import doctest, keras_unison
found = getattr(keras_unison, {name!r})
assert doctest.DocTestFinder(recurse=False).find(found)[0].examples
doctest.run_docstring_examples(found, {{}}, name={name!r})
"""
    assert output_of(run_python(code, KERAS_BACKEND=backend)) == ""


@NEEDS_TENSORFLOW
def test_the_pages_step_for_tensorflow_trains_as_fit_does():
    page = (ROOT / "docs" / "data_parallel.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    (step,) = [block for block in blocks if "@tf.function" in block]
    code = f"""
import keras, numpy as np, tensorflow as tf
import keras_unison as ku
ku.simulate(2)

def make():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

model = ku.DataParallel(make(), devices=2)
optimizer, loss_fn = keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError()
{step}
x, y = np.random.rand(33, 8).astype("float32"), np.ones((33, 1), "float32")
plain = make()
for start in range(0, 33, 11):
    batch = x[start : start + 11], y[start : start + 11]
    loss = train_step(*batch)
    np.testing.assert_allclose(loss, plain.train_on_batch(*batch), rtol=1e-5)
    plain.reset_metrics()
np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], rtol=1e-5)
"""
    assert output_of(run_python(code, KERAS_BACKEND="tensorflow")) == ""


def test_the_readme_shows_the_table_of_tested_versions():
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", readme(), re.M)
    for package, lowest, newest in rows:
        assert TESTED[package].lowest == lowest
        assert TESTED[package].newest == newest
    assert [row[0] for row in rows] == ["keras", "jax", "tensorflow"]


def test_every_link_of_the_documentation_leads_somewhere():
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
    ]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_linked_from_the_readme():
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in readme()


def readme() -> str:
    return (ROOT / "README.md").read_text()
