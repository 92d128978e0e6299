"""The stages of the recipe: each reads from the working folder what earlier ones left there."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from specfit.models.errors import ModelFileError

from . import corpus, decode, vocabulary
from .arithmetic import problems
from .cleaning import clean, good_answer
from .corpus import Conversation
from .decode import END, Decoder, conversations
from .export import write_head, write_target
from .fit import FitResult, fit_target
from .head import Head, fit_head
from .networks import load_decoder_network
from .recipe import Recipe, Voice
from .rows import Rows
from .scripts import teacher_scripts
from .target import Target

NAME = "SpecFit Tiny"
_TOKENIZER_CHARACTERS = 60_000_000
_SHARD = 60_000
# The first voice is that of use; answers at a low temperature are what the head meets when greedy.
_ANSWERING = (Voice(0.7, 160), Voice(0.2, 160))
_CLEANERS_AT_MOST = 14


@dataclass(frozen=True)
class Run:
    """What a stage works with. report: takes its lines of progress."""

    work: Path
    recipe: Recipe
    seed: int
    device: torch.device
    report: Callable[[str], None]

    def path(self, *names: str) -> Path:
        """A path to write to, its folder made."""
        path = self.work.joinpath(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def made(self, *names: str) -> Path:
        """What an earlier stage wrote. Raises ModelFileError if it is not there."""
        path = self.work.joinpath(*names)
        if not path.exists():
            raise ModelFileError(f"{path} is not there yet; run the stage that writes it first.")
        return path

    def note(self, stage: str, found: dict[str, Any]) -> None:
        """Keeps the figures of a stage."""
        self.path(f"{stage}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        self.report(f"{stage}: {json.dumps({k: v for k, v in found.items() if k != 'curve'})}")


def write_text(run: Run, teacher: Path) -> None:
    """Conversations by the teacher, on every GPU there is, each with a seed of its own."""
    n_parts = max(1, torch.cuda.device_count()) if run.device.type == "cuda" else 1
    if n_parts == 1:
        _write_part(run.work, run.recipe, teacher, run.seed, 0, str(run.device))
    else:
        spawn = multiprocessing.get_context("spawn")
        parts = [
            spawn.Process(
                target=_write_part,
                args=(run.work, run.recipe, teacher, run.seed, part, f"cuda:{part}"),
            )
            for part in range(n_parts)
        ]
        for process in parts:
            process.start()
        for process in parts:
            process.join()
        if any(process.exitcode for process in parts):
            raise ModelFileError("writing text failed on a GPU: see above why.")
    shards = sorted(run.work.glob("text/*.jsonl.gz"))
    run.note("text", {"seconds": run.recipe.text_seconds, "shards": len(shards)})


def _write_part(
    work: Path, recipe: Recipe, teacher: Path, seed: int, part: int, device: str
) -> None:
    run = Run(work, recipe, seed + 1000 * part, torch.device(device), _printed)
    tokenizer = vocabulary.read(teacher)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    scripts = teacher_scripts(encode, recipe.scripts, run.seed)
    decoder = _decoder(run, teacher, scripts.tokens, scripts.voices, scripts.prefix)
    with _cleaners() as pool:
        pending: list[Future[int]] = []
        for chunk in range(recipe.text_chunks):
            log = decoder.run(recipe.text_seconds / recipe.text_chunks)
            raw = run.path("text", f"{part}-{chunk}.npy")
            np.save(raw, log)
            for at, columns in enumerate(np.array_split(np.arange(log.shape[1]), pool_size())):
                out = run.path("text", f"{part}-{chunk}-{at}.jsonl.gz")
                where = (int(columns[0]), int(columns[-1]) + 1)
                pending.append(pool.submit(_clean_part, raw, where, teacher, run.seed, out))
            run.report(f"text {part}: {log.size / 1e6:.1f} M tokens in chunk {chunk}")
        kept = sum(future.result() for future in pending)
    for raw in work.glob(f"text/{part}-*.npy"):
        raw.unlink()
    run.report(f"text {part}: {kept} conversations")


def _clean_part(raw: Path, where: tuple[int, int], teacher: Path, seed: int, out: Path) -> int:
    """Cleans the conversations in some columns of a decode log; returns how many are left."""
    log = np.load(raw, mmap_mode="r")[:, where[0] : where[1]]
    tokenizer = vocabulary.read(teacher)
    random = np.random.default_rng((seed, where[0]))
    texts = _decoded(tokenizer, conversations(np.asarray(log)))
    cleaned = [clean(text, random) for text in texts]
    kept = [conversation for conversation in cleaned if conversation is not None]
    corpus.write(out, kept)
    return len(kept)


def write_corpus(run: Run) -> None:
    """The tokenizer, and rows of tokens to train on and to hold out."""
    recipe = run.recipe
    written = _read_all(sorted(run.made("text").glob("*.jsonl.gz")))
    n_letters = sum(len(m["content"]) for c in written for m in c["messages"])
    # A problem with its solution has about 200 letters.
    n_problems = int(n_letters * recipe.arithmetic_share / (1 - recipe.arithmetic_share) / 200)
    everything = written + list(problems(max(20, n_problems), run.seed))
    order = np.random.default_rng(run.seed).permutation(len(everything))
    held_out, train = np.split(order, [min(recipe.held_out, len(order) // 4)])

    tokenizer = vocabulary.trained(_up_to(everything, train), recipe.shape.vocab)
    tokenizer.save(str(run.path("tokenizer.json")))
    counts: dict[str, int] = {}
    for name, chosen in (("held-out", held_out), ("train", train)):
        texts = [corpus.chatml(everything[index]) for index in chosen]
        rows = corpus.packed(corpus.encoded(tokenizer, texts), recipe.row_length)
        rows.save(run.path("rows", f"{name}.npz"))
        counts[name.replace("-", "_") + "_tokens"] = rows.n_tokens
    # Prompts for the model's own answers.
    for at, part in enumerate(np.array_split(train[:240_000], 4)):
        corpus.write(run.path("prompts", f"{at}.jsonl.gz"), (everything[i] for i in part))
    corpus.write(run.path("held-out.jsonl.gz"), (everything[i] for i in held_out))
    kinds = dict.fromkeys(sorted({c["kind"] for c in everything}), 0)
    for conversation in everything:
        kinds[conversation["kind"]] += 1
    run.note("corpus", {"conversations": len(everything), "kinds": kinds, **counts})


def train_target(run: Run) -> None:
    target = Target(run.recipe.shape, seed=run.seed)
    result = _fit(run, target, run.recipe.target_seconds, seed=run.seed)
    _write(run, target, "target.gguf")
    run.note("target", asdict(result))


def write_own(run: Run) -> None:
    """The target's answers to its training prompts; only good ones are kept."""
    recipe, tokenizer = run.recipe, _tokenizer(run)
    # Whether its sums are right would be another question; the corpus has enough of them.
    asked = [c for c in _prompts(run) if c["kind"] != "arithmetic"]
    answered = _answers(run, "target.gguf", asked, _ANSWERING[:1], recipe.own_seconds)
    texts = _decoded(tokenizer, [answer for answer in answered if answer.whole])
    with _cleaners() as pool:
        judged = list(pool.map(_judged, texts, chunksize=500))
    kept = [conversation for conversation in judged if conversation is not None]
    rows = corpus.packed(
        corpus.encoded(tokenizer, [corpus.chatml(c) for c in kept]), recipe.row_length
    )
    rows.save(run.path("rows", "own.npz"))
    corpus.write(run.path("own.jsonl.gz"), kept[:_SHARD])
    run.note("own", {"answered": len(answered), "kept": len(kept), "tokens": rows.n_tokens})


def _judged(text: str) -> Conversation | None:
    """A conversation that the target answered, if all its answers are good."""
    messages = corpus.messages(f"{vocabulary.START_OF_TURN}{text}")
    question = ""
    for message in messages:
        if message["role"] != "assistant":
            question = message["content"]
        elif not good_answer(question, message["content"], True):
            return None
    return {"kind": "own", "messages": messages} if messages else None


def polish(run: Run) -> None:
    """Trains on teacher's text and own answers with the weights as they will be quantised."""
    target = Target.from_gguf(run.made("target.gguf"), quantised=True)
    own = _rows(run, "rows", "own.npz")
    if not len(own):
        run.report("polish: none of its answers was good; there is only the teacher's text")
    result = _fit(
        run,
        target,
        run.recipe.polish_seconds,
        own=own if len(own) else None,
        rate=run.recipe.polish_rate,
        seed=run.seed + 1,
    )
    _write(run, target, "shipped.gguf")
    run.note("polish", asdict(result))


def _fit(run: Run, target: Target, seconds: float, **settings: Any) -> FitResult:
    """Trains `target` on the corpus; settings: as `fit_target` takes them."""
    train, held_out = (_rows(run, "rows", f"{name}.npz") for name in ("train", "held-out"))
    return fit_target(
        target,
        train,
        held_out,
        run.recipe,
        seconds,
        device=run.device,
        report=run.report,
        **settings,
    )


def _write(run: Run, target: Target, name: str) -> None:
    """As it was trained: quantised if its weights were."""
    tokenizer, out = run.made("tokenizer.json"), run.path(name)
    write_target(target, tokenizer, out, quantised=target.quantised, name=NAME)


def write_answers(run: Run) -> None:
    """What the head learns from: the shipped model's answers, good and bad."""
    recipe, tokenizer = run.recipe, _tokenizer(run)
    answered = _answers(run, "shipped.gguf", _prompts(run), _ANSWERING, recipe.answers_seconds)
    start = tokenizer.encode(vocabulary.START_OF_TURN).ids
    end = tokenizer.encode(f"\n{vocabulary.END_OF_TEXT}").ids
    documents = (np.concatenate([start, a.tokens, end]).astype(np.uint16) for a in answered)
    rows = corpus.packed(documents, recipe.answers_length)
    opening = tokenizer.encode(f"{vocabulary.START_OF_TURN}assistant\n").ids
    mask = corpus.answer_mask(rows.tokens, opening, vocabulary.end_of_turn(tokenizer))
    Rows(rows.tokens, rows.fill, mask).save(run.path("rows", "answers.npz"))
    share = float(mask.sum() / rows.n_tokens)
    run.note("answers", {"tokens": rows.n_tokens, "answer_share": round(share, 3)})


def train_head(run: Run) -> None:
    recipe = run.recipe
    target = Target.from_gguf(run.made("shipped.gguf")).to(run.device)

    def keep(step: int, head: Head) -> None:
        write_head(head, recipe.shape, run.path(f"eagle3-step-{step}", "config.json").parent)

    result = fit_head(
        target,
        _rows(run, "rows", "answers.npz"),
        recipe,
        recipe.head_seconds,
        seed=run.seed,
        device=run.device,
        report=run.report,
        keep=keep,
    )
    write_head(result.head, recipe.shape, run.path("eagle3", "config.json").parent)
    run.note("head", result.figures())


def _prompts(run: Run) -> list[Conversation]:
    return _read_all(sorted(run.made("prompts").glob("*.jsonl.gz")))


def _answers(
    run: Run,
    model: str,
    asked: Sequence[Conversation],
    voices: Sequence[Voice],
    seconds: float,
) -> list[decode.Conversation]:
    """Conversations in which `model` answers what was asked anew."""
    recipe, tokenizer = run.recipe, _tokenizer(run)
    numbers = range(len(voices))
    longest = recipe.decode_length - max(voice.cap for voice in voices)
    scripts = [s for s in corpus.prompts(tokenizer, asked, numbers, run.seed) if len(s) < longest]
    if not scripts:  # a teacher so slow that it wrote nothing good
        return []
    tokens = np.full((len(scripts), max(map(len, scripts)) + 1), END, np.int32)
    for row, script in enumerate(scripts):
        tokens[row, : len(script)] = script
    prefix = tokenizer.encode(vocabulary.START_OF_TURN).ids
    decoder = _decoder(run, run.made(model), tokens, voices, prefix)
    found = conversations(decoder.run(seconds))
    while (
        len(found) < recipe.least_answers
    ):  # a slow machine, or a model that does not come to an end
        found += conversations(decoder.run(seconds))
    return found


def _decoder(
    run: Run,
    model: Path,
    scripts: NDArray[np.int32],
    voices: Sequence[Voice],
    prefix: Sequence[int],
) -> Decoder:
    recipe = run.recipe
    dtype = torch.bfloat16 if run.device.type == "cuda" else torch.float32
    network = load_decoder_network(
        model, recipe.decode_rows, recipe.decode_length, run.device, dtype
    )
    end = vocabulary.end_of_turn(vocabulary.read(model))
    return Decoder(network, scripts, voices, recipe.min_p, end, prefix, run.seed)


def _decoded(tokenizer: Tokenizer, found: Sequence[decode.Conversation]) -> list[str]:
    tokens = [conversation.tokens.tolist() for conversation in found]
    return list(tokenizer.decode_batch(tokens, skip_special_tokens=False))


def _tokenizer(run: Run) -> Tokenizer:
    return Tokenizer.from_file(str(run.made("tokenizer.json")))


def _rows(run: Run, *names: str) -> Rows:
    path = run.made(*names)
    try:
        return Rows.load(path)
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ModelFileError(f"{path} holds no rows; have its stage write it anew.") from error


def pool_size() -> int:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(_CLEANERS_AT_MOST, max(1, cores - 1))


def _cleaners() -> Executor:
    """Processes, or where there is a core for one alone, a thread, which needs no start."""
    if pool_size() == 1:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(pool_size(), mp_context=multiprocessing.get_context("spawn"))


def _read_all(paths: Sequence[Path]) -> list[Conversation]:
    with _cleaners() as pool:
        return [conversation for part in pool.map(corpus.read, paths) for conversation in part]


def _up_to(everything: Sequence[Conversation], chosen: NDArray[np.int64]) -> Iterator[str]:
    letters = 0
    for index in chosen:
        text = corpus.plain(everything[index])
        letters += len(text)
        yield text
        if letters > _TOKENIZER_CHARACTERS:
            return


def _printed(line: str) -> None:
    print(line, flush=True)
