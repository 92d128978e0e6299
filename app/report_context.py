"""How large a context specfit-report gives each mode, where nobody has said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .entry import AppError
from .prompts import Prompt

# Calibration wants the least; the most is because every mode has as much.
LEAST_CTX, MOST_CTX, CTX_STEP = 768, 2048, 256
# Tokens that a chat template may add.
OF_A_MESSAGE, OF_A_TEMPLATE = 16, 64


def context_for(model: Path | None, prompts: Sequence[Prompt], answer: int) -> int:
    """Tokens that the longest prompt and its answer need of a context, about; within bounds.

    Counted by the model's vocabulary, before there is a context that it could be loaded with. A
    prompt that the chat template makes more of than is allowed for is refused later.

    Raises AppError for a prompt that cannot fit, before minutes of loading and measuring.
    """
    import llama_cpp.llama_cpp as llama

    from specfit.backend import last_words, library
    from specfit.models import bundled_model
    from specfit.models.gguf_info import read_gguf_info

    path = model or bundled_model()
    trained = read_gguf_info(path).context_length or MOST_CTX
    library.start()
    last_words.about(path)
    params = llama.llama_model_default_params()
    params.vocab_only = True
    handle = llama.llama_model_load_from_file(str(path).encode(), params)
    if handle is None:  # loading the weights will say why
        return LEAST_CTX
    vocab = llama.llama_model_get_vocab(handle)

    def count(text: bytes) -> int:
        return -int(llama.llama_tokenize(vocab, text, len(text), None, 0, False, True))

    contents = [
        sum(count(message["content"].encode()) for message in prompt.messages) for prompt in prompts
    ]
    llama.llama_model_free(handle)
    longest, most = 0, min(MOST_CTX, trained)
    for prompt, tokens in zip(prompts, contents, strict=True):
        if tokens + answer > most:
            raise AppError(
                f"{prompt.id}, line {prompt.number}: prompt and answer need more than "
                f"{tokens + answer} tokens, and a mode is given at most {most} here; name -c in "
                "--placement, lower -n, or leave the prompt out"
            )
        longest = max(longest, tokens + OF_A_MESSAGE * len(prompt.messages))
    needed = -(-(longest + OF_A_TEMPLATE + answer) // CTX_STEP) * CTX_STEP
    return min(max(needed, LEAST_CTX), most)
