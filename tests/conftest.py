"""Settings shared by all tests."""

from collections import Counter

import pytest
import torch

from amx import avoid_broken_amx
from cases import WHOLE
from parsimax.kernels import backends, dispatch, library

avoid_broken_amx()

# pytest-xdist already uses the cores; threads inside each worker would only fight over them.
torch.set_num_threads(1)

# What these hold must be true of the plain torch reference and of the C++ kernels.
ON_EVERY_KERNEL = {
    "test_contract",
    "test_dtypes",
    "test_family",
    "test_parameters",
    "test_truth",
    "test_peer",
    "test_losses",
    "test_fenchel_young",
    "test_linear",
    "test_heads",
    "test_pointwise",
}
ABOUT_KERNELS = {"test_kernels", "test_other_kernels", "test_sweep", "test_compiled_kernels"}
EAGER_MODES = {"test_gradcheck", "test_gradgradcheck"}
# And these of the formulas in float32, which GPUs without kernels run; all of them in `make test-kernels`.
IN_FLOAT32 = {
    "test_a_million_scores_sum_to_the_total",
    "test_short_rows_are_points_of_the_simplex",
    "test_minus_infinity_forbids",
    *(["test_a_bad_row_harms_no_other", "test_fifty_digits", "test_alpha_gradient"] if WHOLE else []),
}


def in_vain(name: str) -> bool:
    """float64 is float64 there too; and of a million scores one plateau is enough."""
    some = "test_a_million" not in name or "plateau just below" in name or WHOLE
    return "[lean-" in name and ("float64" in name or not some)


QUICK_CASES = 2
LONG = {"test_demo", "test_recipes", "test_runs", "test_digits", "test_report", "test_one_file", "test_kernel_sources"}
LONG |= {"test_huggingface_models", "test_huggingface_parallel", "test_huggingface_saving", "test_huggingface_sweep"}
LONG |= {
    "test_ape",
    "test_ape_data",
    "test_finetune",
    "test_multilabel",
    "test_latent_recipes",
    "test_lm",
    "test_triton",
    "test_triton_compile",
}
LONG |= {
    "test_inductor",
    "test_exporting",
    "test_install",
    "test_attention_modes",
    "test_modes",
    "test_compiled_kernels",
}


def pytest_addoption(parser):
    parser.addoption(
        "--quick", action="store_true", help=f"{QUICK_CASES} cases of each test, and none of the modules that take long"
    )


def pytest_collection_modifyitems(config, items):
    items[:] = [item for item in items if not in_vain(item.name)]
    if not config.getoption("--quick"):
        return
    seen, kept, left_out = Counter(), [], []
    for item in items:
        name = (item.path, getattr(item, "originalname", item.name))
        seen[name] += 1
        long = item.path.stem in LONG or "lower_instruction_sets" in item.name
        (left_out if seen[name] > QUICK_CASES or long else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def pytest_generate_tests(metafunc):
    module, name = metafunc.module.__name__, metafunc.function.__name__
    if module in ON_EVERY_KERNEL or (module == "test_modes" and name in EAGER_MODES):
        lean = ["lean"] if name in IN_FLOAT32 else []
        metafunc.parametrize("kernels", ["torch", "cpu", *lean], indirect=True)


@pytest.fixture(autouse=True)
def kernels(request):
    """Run the test with these kernels; the reference also serves what no kernel can do.

    Where there are none (another compiler, the lowest torch), the tests about kernels are skipped and all others run in
    plain torch, once.
    """
    wanted = getattr(request, "param", None)
    if not library.AVAILABLE and (wanted == "cpu" or request.module.__name__ in ABOUT_KERNELS):
        pytest.skip(library.PROBLEM)
    plain = wanted if wanted in backends.PLAIN else "torch"
    with dispatch.use("auto" if library.AVAILABLE and wanted not in backends.PLAIN else plain):
        yield wanted or ("cpu" if library.AVAILABLE else "torch")
