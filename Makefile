# `make chat` and `make test` each do all the set-up they need, on a fresh Linux or macOS machine too.
# Kept to what macOS's GNU make 3.81 and a POSIX sh understand.

# Options of the chat, for example: make chat ARGS='-p "Why is the sky blue?"'
ARGS =
# What llama.cpp is built for: cuda, hip, vulkan, metal or cpu. Empty: as it is, or what the machine has.
GPU =
export GPU

VENV_PYTHON = .venv/bin/python

# The set-up runs in the environment's own Python once there is one, until then in the newest that can make it.
# A command that merely exists is not enough (version managers leave empty shims): each is tried.
SUITABLE = import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
define SETUP
@if $(VENV_PYTHON) -c 'import pip; $(SUITABLE)' >/dev/null 2>&1; then \
  exec $(VENV_PYTHON) bootstrap.py --gpu "$$GPU" $(1); \
fi; \
for python in python3.14 python3.13 python3.12 python3.11 python3; do \
  if "$$python" -c '$(SUITABLE)' >/dev/null 2>&1; then \
    exec "$$python" bootstrap.py --gpu "$$GPU" $(1); \
  fi; \
done; \
echo >&2 'SpecFit needs Python 3.11 to 3.14 with its venv module, and found none' \
  '(Debian, Ubuntu: apt install python3-venv; Fedora: dnf install python3; macOS: brew install python@3.13).'; \
exit 2
endef

.PHONY: help chat test setup format clean

help:
	@echo 'make chat     chat with the bundled model (options: make chat ARGS="-m FILE.gguf")'
	@echo 'make test     run the linters, the type checker and the tests'
	@echo 'make setup    only set up; GPU=cuda|hip|vulkan|metal|cpu chooses what llama.cpp is built for'
	@echo 'make format   put the sources into their standard format'
	@echo 'make clean    remove everything that make has made, the environment included'

chat:
	$(call SETUP)
	@if [ -t 0 ]; then .venv/bin/specfit-chat $(ARGS); else .venv/bin/specfit-chat $(ARGS) </dev/null; fi

test:
	$(call SETUP,--test)
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check
	$(VENV_PYTHON) -m mypy
	$(VENV_PYTHON) -m mypy bootstrap.py
	$(VENV_PYTHON) -m pytest -n logical --maxprocesses 4 --dist loadfile

setup:
	$(call SETUP,--report)

format:
	$(call SETUP,--test)
	$(VENV_PYTHON) -m ruff check --fix
	$(VENV_PYTHON) -m ruff format

clean:
	rm -rf .venv build dist *.egg-info planner/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find app backend planner models tests -name __pycache__ -type d -prune -exec rm -rf {} +
