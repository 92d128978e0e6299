"""Conversations by the thousand: every row follows a script, and starts the next one by itself.

A script says token by token what a conversation is given and where the model speaks. All decisions
(what is fed, when a turn is over, which script comes next) are made by tensor operations, so that a
step is one CUDA graph and the host only replays it and copies the log of fed tokens out. Prompts
are fed a token a step like everything else: rows are many enough that nothing is gained by more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specfit.models.training.networks import DecodeNetwork, compiled
from specfit.models.training.recipe import Voice

Tokens = NDArray[np.int32]

# In scripts: the conversation is over. An entry -1-k lets voices[k] speak.
END = -100

# In the log, above the token: its conversation ended here, for want of room in its row; and an end
# of turn that was fed in place of what the model would have said.
ENDED, CUT, CAPPED = 1 << 20, 1 << 21, 1 << 22
_TOKEN = ENDED - 1

# Steps between two looks at the clock.
_BURST = 16
_WARM_STEPS = 3


class Decoder:
    """Rows of a network that follow scripts; consecutive runs go on where the last one stopped.

    The scripts are handed out in order, again from the first when there are no more, to the rows in
    order. Tokens are drawn from those with at least min_p of the likeliest one's probability, at
    the voice's temperature, as by llama.cpp's chain of these two. Equal seeds give equal text on a
    CPU, where torch's global random numbers are used. On a GPU it takes some seconds to make one.
    """

    def __init__(
        self,
        network: DecodeNetwork,
        scripts: Tokens,
        prefix: Sequence[int],
        voices: Sequence[Voice],
        *,
        min_p: float,
        end_of_turn: int,
        seed: int,
    ) -> None:
        """scripts: int32 [n, length], entries as above. prefix: tokens that all scripts go on from.

        Raises ValueError for scripts that cannot be followed.
        """
        _check(scripts, prefix, voices, network.length)
        self._network, self._end_of_turn = network, end_of_turn
        rows, device = network.rows, network.device
        # A place beyond the last entry, for scripts that fill their line.
        padded = np.pad(scripts, ((0, 0), (0, 1)), constant_values=END)
        self._scripts = torch.from_numpy(padded.astype(np.int64)).to(device)
        self._temperatures = torch.tensor([voice.temperature for voice in voices], device=device)
        self._caps = torch.tensor([voice.cap for voice in voices], device=device)
        self._pick = compiled(_pick, device)
        self._floor = math.log(min_p) if min_p else -math.inf
        self._prefix = list(prefix)

        def counter(n: int = rows) -> torch.Tensor:
            return torch.zeros(n, dtype=torch.int64, device=device)

        # Of each row: the token to be fed, its position, its script and place there, and how many
        # tokens the model has said in this turn.
        self._tokens, self._positions = counter(), counter()
        self._script, self._place, self._said = counter(), counter(), counter()
        self._next_script, self._log_step = counter(1), counter(1)
        self._log = torch.zeros(_BURST, rows, dtype=torch.int32, device=device)
        for position, token in enumerate(self._prefix[:-1]):
            network.step(self._tokens.fill_(token), self._positions.fill_(position))
        self._restart()
        torch.manual_seed(seed)
        self._advance = self._captured(seed) if device.type == "cuda" else self._step

    def run(self, seconds: float, steps: int) -> NDArray[np.int32]:
        """int32 [steps done, rows]: each row's token of each step, with the flags above.

        Stops after so many steps, or, within some steps, after so many seconds.
        """
        until = time.monotonic() + seconds
        bursts = [np.empty((0, self._network.rows), np.int32)]
        left = steps
        while left and time.monotonic() < until:
            n = min(_BURST, left)
            for _ in range(n):
                self._advance()
            bursts.append(self._log[:n].to("cpu", copy=True).numpy())
            self._log_step.zero_()
            left -= n
        return np.concatenate(bursts)

    @torch.no_grad()
    def _step(self) -> None:
        """Feeds each row's token, decides on its next one and logs that."""
        logits = self._network.step(self._tokens, self._positions)
        entry = self._scripts[self._script, self._place]
        forced = entry >= 0
        voice = (-1 - entry).clamp(min=0)
        noise = torch.empty(logits.shape, device=logits.device, dtype=torch.float32)
        noise = noise.exponential_().clamp_min_(1e-10)
        sampled = self._pick(logits, noise, self._temperatures[voice], self._floor)
        capped = ~forced & (self._said >= self._caps[voice]) & (sampled != self._end_of_turn)
        # (Python numbers as torch.where's arguments would be copied to the GPU: not in a graph.)
        said = sampled.masked_fill(capped, self._end_of_turn)
        token = torch.where(forced, entry, said)
        onward = forced | (token == self._end_of_turn)
        place = self._place + onward.long()
        position = self._positions + 1
        finished = self._scripts[self._script, place] == END
        full = position >= self._network.length - 1
        over = finished | full
        flags = over * ENDED + (full & ~finished) * CUT + capped * CAPPED
        self._log.index_copy_(0, self._log_step, (token + flags).to(torch.int32)[None])
        self._log_step.add_(1)
        # The rows that are over take the next scripts, in order.
        turn = torch.cumsum(over.long(), 0)
        following = (self._next_script + turn - 1) % len(self._scripts)
        self._next_script.add_(turn[-1:])
        self._script.copy_(torch.where(over, following, self._script))
        self._place.copy_(place.masked_fill(over, 0))
        self._said.copy_((self._said + 1).masked_fill(over | onward, 0))
        self._tokens.copy_(token.masked_fill(over, self._prefix[-1]))
        self._positions.copy_(position.masked_fill(over, len(self._prefix) - 1))

    def _restart(self) -> None:
        """Every row at the beginning of its first script, the prefix in its cache."""
        rows = self._network.rows
        first = torch.arange(rows, device=self._network.device) % len(self._scripts)
        self._script.copy_(first)
        self._next_script.fill_(rows)
        self._tokens.fill_(self._prefix[-1])
        self._positions.fill_(len(self._prefix) - 1)
        for counter in (self._place, self._said, self._log_step):
            counter.zero_()

    def _captured(self, seed: int) -> Callable[[], None]:
        """A step as a CUDA graph, which draws new random numbers at every replay."""
        for _ in range(_WARM_STEPS):
            self._step()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_STEPS):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self._restart()
        torch.manual_seed(seed)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph.replay


@dataclass(frozen=True)
class Conversation:
    """What a row was fed, from behind the prefix to the script's end.

    script: its index. cut: it ended for want of room in its row. capped: places of those ends of
    turn that were fed because a voice had reached its cap.
    """

    script: int
    tokens: Tokens
    cut: bool
    capped: NDArray[np.int64]

    @property
    def whole(self) -> bool:
        """All turns ended by themselves."""
        return not self.cut and not len(self.capped)


@dataclass(frozen=True)
class Unfinished:
    """What the rows of a decoder are in the midst of, between two logs.

    scripts: int64 [rows], each row's. following: the next one to be handed out, of `count`.
    entries: each row's log since its conversation began.
    """

    scripts: NDArray[np.int64]
    following: int
    count: int
    entries: tuple[Tokens, ...]

    @classmethod
    def at_first(cls, rows: int, count: int) -> Unfinished:
        """Before a decoder's first run. count: of its scripts."""
        return cls(np.arange(rows) % count, rows % count, count, (np.empty(0, np.int32),) * rows)


def conversations(
    log: NDArray[np.int32], before: Unfinished
) -> tuple[list[Conversation], Unfinished]:
    """The conversations that ended in a log, in the order of their ends, and what is left.

    log: of one run. before: what the runs before it left.
    """
    # By step, then by row, as the decoder hands scripts out.
    steps, rows = np.nonzero(log & ENDED)
    given = (before.following + np.arange(len(steps))) % before.count
    scripts, entries = before.scripts.copy(), list(before.entries)
    starts = np.zeros(log.shape[1], np.int64)
    columns = np.ascontiguousarray(log.T)
    ended: list[Conversation] = []
    for step, row, script in zip(steps.tolist(), rows.tolist(), given, strict=True):
        fed = np.concatenate([entries[row], columns[row, starts[row] : step + 1]])
        ended.append(_conversation(int(scripts[row]), fed))
        entries[row], starts[row], scripts[row] = fed[:0], step + 1, script
    left = tuple(
        np.concatenate([fed, columns[row, starts[row] :]]) for row, fed in enumerate(entries)
    )
    following = (before.following + len(steps)) % before.count
    return ended, Unfinished(scripts, following, before.count, left)


def _conversation(script: int, fed: Tokens) -> Conversation:
    return Conversation(script, fed & _TOKEN, bool(fed[-1] & CUT), np.flatnonzero(fed & CAPPED))


def _pick(
    logits: torch.Tensor, noise: torch.Tensor, temperatures: torch.Tensor, floor: float
) -> torch.Tensor:
    """int64 [rows]: a token of each row.

    noise: exponential, like logits. The largest of x / t - log(noise) is a sample of softmax(x/t);
    times t it holds at t = 0 too. floor: logarithm of min-p.
    """
    x = logits.float()
    x = x - x.amax(-1, keepdim=True)
    noisy = x - temperatures[:, None] * torch.log(noise)
    return noisy.masked_fill(x < floor, -torch.inf).argmax(-1)


def _check(scripts: Tokens, prefix: Sequence[int], voices: Sequence[Voice], length: int) -> None:
    if not len(prefix) or len(prefix) >= length - 1:
        raise ValueError(f"a prefix of {len(prefix)} tokens leaves no room in {length}")
    if scripts.ndim != 2 or not scripts.size or (scripts[:, 0] == END).any():
        raise ValueError("there must be scripts, and something in each")
    speaking = scripts[(scripts < 0) & (scripts != END)]
    if (speaking < -len(voices)).any():
        raise ValueError(f"a script asks for voice {-1 - speaking.min()} of {len(voices)}")
