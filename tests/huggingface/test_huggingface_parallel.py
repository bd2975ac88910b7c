"""Tensor parallelism: two ranks with half of the heads each compute, and learn, what one computes with all of them."""

import os
import socket
import sys

import pytest
import torch
import torch.multiprocessing as processes

from hub import batch, cores, make
from parsimax.huggingface import sparsify

GIVEN = {
    "learned": {"alpha": "learned", "alpha_start": 1.4, "length_scaling": True},
    "some heads": {"alpha": "learned", "heads": [0, 3]},
}


def moved(model):
    """Every head with its own α."""
    for core in cores(model).values():
        core.learned_alpha.raw.data = torch.linspace(-1, 1, 4)
    return model


def loss(model):
    out = model(**batch("LlamaForCausalLM")).logits
    return out, out.square().mean()


def rank_of_two(rank, port, folder, answers):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2"
    )
    torch.set_num_threads(1)
    from transformers import LlamaForCausalLM
    from transformers.distributed import DistributedConfig

    model = LlamaForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2, tp_plan="auto"))
    for kind, given in GIVEN.items():
        moved(sparsify(model, **given)).zero_grad()
        out, value = loss(model)
        value.backward()
        gradients = [core.learned_alpha.raw.grad for core in cores(model).values()]
        torch.save({"out": out.detach(), "gradients": gradients}, f"{answers}/{kind}.{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(sys.platform != "linux", reason="the ranks talk by gloo on this machine")
def test_two_ranks_are_as_one(tmp_path):
    make("LlamaForCausalLM").save_pretrained(tmp_path / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes.spawn(rank_of_two, (port, str(tmp_path / "model"), str(tmp_path)), nprocs=2)
    for kind, given in GIVEN.items():
        model = moved(sparsify(make("LlamaForCausalLM"), **given))
        out, value = loss(model)
        value.backward()
        expected = [core.learned_alpha.raw.grad for core in cores(model).values()]
        for rank in (0, 1):
            answer = torch.load(tmp_path / f"{kind}.{rank}")
            assert torch.allclose(answer["out"], out.detach(), atol=1e-4), kind
            for mine, whole in zip(answer["gradients"], expected, strict=True):
                assert torch.allclose(mine, whole, rtol=1e-3, atol=1e-6), (kind, mine, whole)
        assert all(gradient.abs().max() > 0 for gradient in expected)
