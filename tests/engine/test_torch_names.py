"""Private names of torch: one file touches them, and each has a test here that fails by name when torch moves it."""

import ast
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import parsimax
from parsimax.engine import modes

PACKAGE = Path(parsimax.__file__).parent
HOME = PACKAGE / "engine" / "modes.py"
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own, in forward mode


def private_names(path: Path) -> set[str]:
    """torch._C, torch.autograd.forward_ad._current_level, from torch._subclasses import …, as they are written."""
    tree = ast.parse(path.read_text())
    found, aliases = set(), {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            aliases |= {alias.asname or alias.name for alias in node.names}
            found |= {node.module} if "._" in node.module else set()
            found |= {f"{node.module}.{a.name}" for a in node.names if a.name.startswith("_")}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("torch.") and "._" in a.name}
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            parts = name.split(".") if name.replace(".", "").isidentifier() else [""]
            private = any(p.startswith("_") and not p.startswith("__") for p in parts[1:])
            if parts[0] in aliases and private and not name.startswith("torch.ops.parsimax._"):
                found.add(name)
    return found


def test_no_other_file_touches_one():
    guilty = {
        str(p.relative_to(PACKAGE)): names for p in PACKAGE.rglob("*.py") if p != HOME and (names := private_names(p))
    }
    assert not guilty, f"move these to engine/modes.py, with the reason: {guilty}"


def test_the_search_finds_them(tmp_path):
    file = tmp_path / "some.py"
    for line in (
        "import torch; torch._C.f()",
        "from torch._subclasses import x",
        "from torch.autograd import forward_ad\nforward_ad._current_level",
        "import torch._dynamo",
        "from torch import _C",
    ):
        file.write_text(line)
        assert private_names(file), line
    file.write_text("import torch\ntorch.ops.parsimax._entmax_fwd(torch.zeros(1).__len__())")
    assert not private_names(file)
    assert private_names(HOME)


def test_each_one_has_a_test_below():
    """Where it stands as it does in modes.py; the fast paths have theirs by the list they are in."""
    listed = {f"torch.{path.__name__}" for path in modes.FAST_PATHS}
    missing = {name for name in private_names(HOME) - listed if name not in Path(__file__).read_text()}
    assert not missing, f"no test in this file touches {missing}"


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_is_tracing():
    seen = []
    torch.jit.trace(lambda x: seen.append(torch._C._is_tracing()) or x + 1, torch.zeros(2), check_trace=False)
    assert seen == [True] and not torch._C._is_tracing()


def test_are_functorch_transforms_active():
    seen = []
    torch.func.vmap(lambda x: seen.append(torch._C._are_functorch_transforms_active()) or x)(torch.zeros(2))
    assert seen == [True] and not torch._C._are_functorch_transforms_active()


def test_forward_ad_current_level():
    assert forward_ad._current_level == -1
    with forward_ad.dual_level():
        assert forward_ad._current_level == 0


def test_len_torch_dispatch_stack():
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **kwargs or {})

    assert torch._C._len_torch_dispatch_stack() == 0
    with Mode():
        assert torch._C._len_torch_dispatch_stack() == 1


def test_is_legacy_batchedtensor():
    seen = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            seen.append((type(g), torch._C._functorch.is_legacy_batchedtensor(g)))
            return g

    x = torch.zeros(2, requires_grad=True)
    torch.autograd.grad(Watched.apply(x), x, torch.eye(2), is_grads_batched=True)
    assert seen == [(torch.Tensor, True)] and not torch._C._functorch.is_legacy_batchedtensor(x)


def test_fake_tensor():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.zeros(2))
        assert type(fake) is FakeTensor and not modes.is_plain(fake)


def test_is_any_autocast_enabled():
    assert not torch._C._is_any_autocast_enabled()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch._C._is_any_autocast_enabled()
        assert not modes.quick(torch.zeros(2), -1)


def test_auto_dispatch_below_autograd():
    x = torch.zeros(2, requires_grad=True)
    with torch._C._AutoDispatchBelowAutograd():
        assert (x * 2).grad_fn is None
    assert (x * 2).grad_fn is not None


def test_current_graph_task_id():
    seen = []
    x = torch.zeros(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(torch._C._current_graph_task_id()))
    y.sum().backward()
    assert torch._C._current_graph_task_id() == -1 and seen[0] >= 0


def test_disabled_torch_function_impl():
    assert torch.nn.Parameter.__torch_function__ is torch._C._disabled_torch_function_impl
    assert torch.Tensor.__torch_function__ is not torch._C._disabled_torch_function_impl


def test_op_of_an_overload():
    overload = torch.ops.aten.add.Tensor
    assert modes.direct(overload) is overload._op and overload._op(torch.ones(1), torch.ones(1)).item() == 2


@pytest.mark.parametrize("path", modes.FAST_PATHS, ids=lambda path: path.__name__)
def test_fast_paths(path, monkeypatch):
    """nn.MultiheadAttention and nn.TransformerEncoderLayer still call them, in eval mode and without gradients."""
    called = []
    monkeypatch.setattr(torch, path.__name__, lambda *given: called.append(True) or path(*given))
    x = torch.randn(2, 3, 8)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    with torch.no_grad():
        layer.self_attn(x, x, x)
        layer(x)
    assert called
