"""Learned parameters under FSDP2, in a group of one process, and the shape in which they are saved."""

import copy

import pytest
import torch
from torch import distributed, nn
from torch.distributed import _functional_collectives
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh

import parsimax

TARGET = torch.tensor([0, 3, 1])
MODULES = {
    "Entmax": lambda: parsimax.Entmax(1.3, learnable=True),
    "Entmax without end": lambda: parsimax.Entmax(1.3, learnable=True, interval=(1, float("inf"))),
    "Entmax of rows": lambda: parsimax.Entmax(1.3, learnable=True, shape=(3, 1)),
    "EntmaxLoss": lambda: parsimax.EntmaxLoss(1.3, learnable=True),
    "EntmaxLoss by its start": lambda: parsimax.EntmaxLoss(torch.tensor(1.3), learnable=True),
    "LinearEntmaxLoss": lambda: parsimax.LinearEntmaxLoss(1.3, learnable=True),
    "MultiheadAttention": lambda: parsimax.MultiheadAttention(4, 1, alpha="learned"),
}
SINGLE = [name for name in MODULES if name not in ("Entmax of rows", "MultiheadAttention")]


def run(name, module, x):
    if name == "MultiheadAttention":
        return module(x, x, x)[0].square().sum()
    if name == "LinearEntmaxLoss":
        return module(x, torch.eye(4), TARGET)
    return module(x).square().sum() if name.startswith("Entmax ") or name == "Entmax" else module(x, TARGET)


@pytest.fixture
def mesh(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")  # of one module as a whole model
@pytest.mark.parametrize("name", MODULES)
def test_fully_shard_trains_as_one_process_does(name, mesh, monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    plain = MODULES[name]()
    shard = fully_shard(copy.deepcopy(plain), mesh=mesh)
    assert all(isinstance(p, DTensor) for p in shard.parameters())
    with monkeypatch.context() as patch:  # one rank may print alone: nobody would answer
        for collective in ("all_gather_tensor", "all_reduce"):
            patch.delattr(_functional_collectives, collective)
        assert "alpha learned" in repr(shard)
    for module in (plain, shard):
        optimiser = torch.optim.Adam(module.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            run(name, module, x).backward()
            optimiser.step()
    trained = get_model_state_dict(shard)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(trained[key].full_tensor(), value)
    assert not torch.equal(plain.state_dict()[raw_of(plain)], MODULES[name]().state_dict()[raw_of(plain)])


def raw_of(module):
    (name,) = (key for key in module.state_dict() if key.endswith("learned_alpha.raw"))
    return name


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_number_is_saved_with_one_dimension_and_used_with_none(name):
    module = MODULES[name]()
    key = raw_of(module)
    assert module.state_dict()[key].shape == (1,) and module.alpha.shape == ()
    assert all(p.dim() for p in module.parameters())
    torch.testing.assert_close(module.alpha.detach(), torch.tensor(1.3))
    x = torch.randn(3, 4)
    run(name, module, x).backward()
    assert dict(module.named_parameters())[key].grad.shape == (1,)
    twin = copy.deepcopy(module)
    assert torch.equal(run(name, twin, x), run(name, module, x))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("name", SINGLE)
def test_checkpoints_of_scalars_still_load(name, assign):
    module = MODULES[name]()
    key = raw_of(module)
    old = {**module.state_dict(), key: torch.tensor(0.25)}
    model = nn.Sequential(module)
    model.load_state_dict({f"0.{each}": value for each, value in old.items()}, assign=assign)
    assert model.state_dict()[f"0.{key}"].tolist() == [0.25] and module.alpha.shape == ()
    assert old[key].shape == ()
    with pytest.raises(RuntimeError, match="size mismatch"):
        module.load_state_dict({**old, key: torch.zeros(2)})
