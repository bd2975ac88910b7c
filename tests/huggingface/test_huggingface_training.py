"""``Trainer`` with ``AlphaCallback``: α has its own rate and no decay, schedules follow the step, resuming is exact."""

import pytest
import torch
from transformers import Trainer, TrainingArguments

from hub import cores, make
from parsimax import schedules
from parsimax.huggingface import AlphaCallback, sparsify

pytest.importorskip("accelerate", reason="Trainer needs accelerate")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        ids = torch.randint(4, 40, (7,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def trainer(model, folder, callbacks=(), steps=4, **more):
    options = {"learning_rate": 0.0, "weight_decay": 0.5, "max_steps": steps, "per_device_train_batch_size": 2, **more}
    arguments = TrainingArguments(
        str(folder), report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="steps", save_steps=2, **options
    )
    return Trainer(model, arguments, train_dataset=Data(), callbacks=list(callbacks))


def model(**given):
    return sparsify(make("LlamaForCausalLM"), **(given or {"alpha": "learned", "alpha_start": 1.9}))


def raws(model):
    return torch.cat([core.learned_alpha.raw.detach().flatten() for core in cores(model).values()])


def test_alpha_has_its_own_rate_and_no_decay(tmp_path):
    mine, start = model(), raws(model())
    weights = mine.model.layers[0].self_attn.q_proj.weight.detach().clone()
    run = trainer(mine, tmp_path, [AlphaCallback(lr=0.1)], lr_scheduler_type="constant")
    run.train()
    moved = (raws(mine) - start).abs()
    assert torch.equal(mine.model.layers[0].self_attn.q_proj.weight, weights)  # whose rate is 0
    assert 0.2 < moved.max() <= 0.41  # four Adam steps of 0.1
    groups = run.optimizer.param_groups
    assert len(groups) == 2 and {group["weight_decay"] for group in groups} == {0.5, 0.0}
    inside = [p for group in groups for p in group["params"]]
    assert len(inside) == len({id(p) for p in inside}) == len(list(mine.parameters()))
    plain = run.optimizer.optimizer
    assert not plain._optimizer_step_pre_hooks and not plain._optimizer_step_post_hooks


def test_without_the_callback_alpha_decays(tmp_path):
    """What the callback is for: by itself Trainer puts α where weight decay is."""
    mine = model()
    run = trainer(mine, tmp_path, learning_rate=0.1, weight_decay=1.0)
    run.create_optimizer()
    decayed = next(group for group in run.optimizer.param_groups if group["weight_decay"])
    ids = {id(p) for p in decayed["params"]}
    assert all(id(core.learned_alpha.raw) in ids for core in cores(mine).values())


def test_zero_gradients_leave_alpha_where_it_is(tmp_path):
    mine, start = model(), raws(model())
    for core in cores(mine).values():
        core.learned_alpha.raw.register_hook(torch.zeros_like)
    trainer(mine, tmp_path, [AlphaCallback(lr=0.5)], learning_rate=0.1).train()
    assert torch.equal(raws(mine), start)


def test_the_rate_follows_the_scheduler(tmp_path):
    seen = []

    class Watch(AlphaCallback):
        def on_train_begin(self, *args, **kwargs):
            super().on_train_begin(*args, **kwargs)
            plain = kwargs["optimizer"].optimizer
            plain.register_step_pre_hook(
                lambda o, *_: seen.append([(g["lr"], g["weight_decay"]) for g in o.param_groups])
            )

    trainer(model(), tmp_path, [Watch(lr=0.1)], learning_rate=0.01, lr_scheduler_type="linear").train()
    assert [len(groups) for groups in seen] == [3] * 4
    assert [groups[-1] for groups in seen] == [(pytest.approx(0.1 * share), 0.0) for share in (1, 0.75, 0.5, 0.25)]
    assert [groups[0][0] for groups in seen] == [pytest.approx(0.01 * share) for share in (1, 0.75, 0.5, 0.25)]


def test_resuming_is_exact(tmp_path):
    options = {"learning_rate": 0.01, "lr_scheduler_type": "linear"}
    whole = model()
    trainer(whole, tmp_path / "whole", [AlphaCallback(lr=0.1)], **options).train()
    again = model()
    run = trainer(again, tmp_path / "again", [AlphaCallback(lr=0.1)], **options)
    run.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert torch.equal(raws(whole), raws(again))
    for mine, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_schedules_follow_the_step(tmp_path):
    mine, seen = model(alpha=schedules.Linear(1.0, 2.0, steps=4)), []
    first = next(iter(cores(mine).values()))
    first.observers.append(lambda observation: seen.append(observation.alpha[0].item()))
    trainer(mine, tmp_path, [AlphaCallback()]).train()
    assert seen == [1.0, 1.25, 1.5, 1.75] and first.alpha.tolist() == [2.0] * 4


@pytest.mark.parametrize("lr", [0, -1.0, float("inf"), True, "fast"])
def test_errors_say_what_was_wrong(lr):
    with pytest.raises(ValueError, match="lr must be a number above 0"):
        AlphaCallback(lr)
