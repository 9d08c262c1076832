"""Shells take the completions that the command prints, and offer what it knows; those that are not installed are named.

usage: completion_test.py SPILLWAY
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# What is typed, up to the word that is completed, and some of what is offered for it.
ASKED = (
    (("spillway", "dry"), "dryrun"),
    (("spillway", "estimate", "--gpu", "h100"), "h100-94"),
    (("spillway", "dryrun", "--gpu", "a100"), "a100-40"),
    (("spillway", "replay", "--capacity", "l4"), "l40s"),
    (("spillway", "replay", "--allocator", "ex"), "expandable"),
    (("spillway", "completion", "f"), "fish"),
)

BASH = """source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
_spillway
printf '%s\\n' "${COMPREPLY[@]}"
"""
# The function is given the words as the line editor gives them; what it would show is what compadd was told.
ZSH = """autoload -Uz compinit; compinit -u -D
zmodload zsh/zpty
zpty shell zsh -f -i
ask() { zpty -w shell "$1"; }
ask "PS1=; fpath=($fpath); autoload -Uz compinit; compinit -u -D; source $1; zstyle ':completion:*' list-colors ''; \
bindkey '^I' complete-word; bindkey '^X' list-choices; LISTMAX=1000; print BEGIN\\$((1+1))"
zpty -r shell out '*BEGIN2*'
shift
zpty -n -w shell "$*"$'\\x18'
sleep 2
text=
while zpty -r -t shell out; do text+=$out; done
print -r -- "$text"
"""


def of_bash(shell: str, script: Path, words: tuple[str, ...]) -> str:
    return run([shell, "--norc", "-c", BASH, "bash", str(script), *words])


def of_zsh(shell: str, script: Path, words: tuple[str, ...]) -> str:
    return run([shell, "-f", "-c", ZSH, "zsh", str(script), *words])


def of_fish(shell: str, script: Path, words: tuple[str, ...]) -> str:
    return run([shell, "--no-config", "-c", f"source {script}; complete --do-complete '{' '.join(words)}'"])


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout


def main() -> int:
    spillway = sys.argv[1]
    wrong = []
    for name, ask in (("bash", of_bash), ("zsh", of_zsh), ("fish", of_fish)):
        shell = shutil.which(name)
        if shell is None:
            print(f"{name} is not installed: its completion was not run")
            continue
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / f"spillway.{name}"
            script.write_text(run([spillway, "completion", name]))
            for words, expected in ASKED:
                offered = ask(shell, script, words)
                if expected not in offered:
                    wrong.append(f"{name}: {' '.join(words)}: {expected} is not among {offered!r}")
        print(f"{name}: {len(ASKED)} lines completed")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
