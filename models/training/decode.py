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

# In the log, above the token: its conversation ended here; for want of room in its row; an end of
# turn that was fed in place of what the model would have said. And where there is no token.
ENDED, CUT, CAPPED, NOTHING = 1 << 20, 1 << 21, 1 << 22, 1 << 23
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
        voices: Sequence[Voice],
        min_p: float,
        end_of_turn: int,
        prefix: Sequence[int],
        seed: int,
    ) -> None:
        """scripts: int32 [n, length], entries as above. prefix: tokens that all scripts go on from.

        Raises ValueError for scripts that cannot be followed.
        """
        _check(scripts, voices, prefix, network.length)
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
        self._unfinished = np.empty((0, rows), np.int32)
        for position, token in enumerate(self._prefix[:-1]):
            network.step(self._tokens.fill_(token), self._positions.fill_(position))
        network.shared = len(self._prefix) - 1
        self._restart()
        torch.manual_seed(seed)
        self._advance = self._captured(seed) if device.type == "cuda" else self._step

    def run(self, seconds: float, steps: float = math.inf) -> NDArray[np.int32]:
        """int32 [steps, rows]: each row's token of each step, with the flags above.

        Stops after so many steps, or, within some steps, after so many seconds. Above these steps
        stands what the rows were in the midst of, NOTHING where that is less, so that a log is
        whole by itself; what it leaves unfinished is in the next one again.
        """
        until = time.monotonic() + seconds
        bursts = [self._unfinished]
        left = steps
        while left and time.monotonic() < until:
            n = int(min(_BURST, left))
            for _ in range(n):
                self._advance()
            bursts.append(self._log[:n].to("cpu", copy=True).numpy())
            self._log_step.zero_()
            left -= n
        log = np.concatenate(bursts)
        self._unfinished = _unfinished(log)
        return log

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
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
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

    cut: it ended for want of room in its row. capped: places of those ends of turn that were fed
    because a voice had reached its cap.
    """

    tokens: Tokens
    cut: bool
    capped: NDArray[np.int64]

    @property
    def whole(self) -> bool:
        """All turns ended by themselves."""
        return not self.cut and not len(self.capped)


def conversations(log: NDArray[np.int32]) -> list[Conversation]:
    """The conversations that ended in a decoder's log, or in some columns of it."""
    ended = []
    for column in np.ascontiguousarray(log.T):
        start = int(np.count_nonzero(column & NOTHING))
        for end in np.flatnonzero(column & ENDED).tolist():
            fed = column[start : end + 1]
            capped = np.flatnonzero(fed & CAPPED)
            ended.append(Conversation(fed & _TOKEN, bool(fed[-1] & CUT), capped))
            start = end + 1
    return ended


def _unfinished(log: NDArray[np.int32]) -> NDArray[np.int32]:
    """What the rows are in the midst of after a log: its last steps, the rest NOTHING."""
    over = np.pad((log & (ENDED | NOTHING)) != 0, ((1, 0), (0, 0)), constant_values=True)
    # Steps of each row since its last end.
    open_steps = over[::-1].argmax(0)
    tail = log[len(log) - int(open_steps.max()) :].copy()
    tail[np.arange(len(tail))[:, None] < len(tail) - open_steps] = NOTHING
    return tail


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


def _check(scripts: Tokens, voices: Sequence[Voice], prefix: Sequence[int], length: int) -> None:
    if not len(prefix) or len(prefix) >= length - 1:
        raise ValueError(f"a prefix of {len(prefix)} tokens leaves no room in {length}")
    if scripts.ndim != 2 or not scripts.size or (scripts[:, 0] == END).any():
        raise ValueError("there must be scripts, and something in each")
    speaking = scripts[(scripts < 0) & (scripts != END)]
    if (speaking < -len(voices)).any():
        raise ValueError(f"a script asks for voice {-1 - speaking.min()} of {len(voices)}")
