"""How the bundled pair was made: from a teacher's text to a chat model and its draft head.

Each stage is a command of minutes, `python -m specfit.models.training STAGE --work FOLDER`, that
reads what earlier stages left in FOLDER and leaves its own there:

    text      a teacher writes conversations, which are cleaned              text/*.jsonl.gz
    corpus    the tokenizer; conversations and arithmetic as rows of tokens  tokenizer.json, rows/
    target    the chat model is trained                                      target.gguf
    polish    it answers anew, keeps what is good, and trains on that with   shipped.gguf
              its weights as they will be quantised
    answers   the shipped model writes what the head learns from             answers/
    head      the EAGLE-3 head is trained                                    eagle3/

A model passes from stage to stage as a GGUF file, so that each works with what llama.cpp will run,
quantisation included.
"""
