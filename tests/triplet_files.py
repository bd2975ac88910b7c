"""What the tests of post-editing share: settings of tiny runs, a tiny BERT, files of triplets."""

import torch

from parsimax.recipes.ape import mistakes

TINY = ["pretrain=2", "judged=4", "beam=2", "width=16", "inner=16", "layers=1", "heads=2", "search.longest=8"]
QUICK = ["steps=4", "eval_every=2", "tensorboard=false", "batch_tokens=512"]


def tiny_bert(size=30, layers=2, seed=0):
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=size,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=20,
    )
    bert = transformers.BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for parameter in bert.parameters():  # biases and norms that are not those of the start
            parameter.add_(0.1 * torch.randn_like(parameter))
    return bert


def files(root, **columns):
    root.mkdir(exist_ok=True)
    for name, lines in columns.items():
        split, _, part = name.rpartition("_")
        (root / f"{split}.{part}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def triplet_files(root, count=40):
    rows = mistakes.triplets(count, 8)
    columns = {
        f"{name}_{part}": [one[place] for one in rows[split]]
        for name, split in (("train", "train"), ("dev", "val"), ("test", "test"))
        for place, part in enumerate(("src", "mt", "pe"))
    }
    return files(root, **columns)
