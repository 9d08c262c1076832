"""What a mutant does to the statement that a marker marks. No operator knows a name of the code, but for by_member().

An operator takes a statement without comments and answers the mutated one. It raises NotUnderstoodError where it does
not fit the statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from statements import (
    NotUnderstoodError,
    Span,
    bare,
    branch_of,
    condition_of,
    last_argument_of,
    operands_of,
    outermost,
    value_of,
)

Operator = Callable[[str], str]


def mutate(statement: str, operator: Operator) -> str:
    """Raises NotUnderstoodError also where nothing would change."""
    mutated = operator(statement)
    if mutated.split() == statement.split():
        raise NotUnderstoodError("nothing changes")
    return mutated


def _put(text: str, span: Span, new: str) -> str:
    return text[: span[0]] + new + text[span[1] :]


def drop(text: str) -> str:
    """The statement is not there."""
    return ";"


def always(text: str) -> str:
    """Its condition is true, or its value: what an `if`, `while` or `?:` asks, `return` answers, or `=` assigns."""
    return _put(text, condition_of(bare(text)), "true")


def never(text: str) -> str:
    """Its condition is false, or its value."""
    return _put(text, condition_of(bare(text)), "false")


def ignored(text: str) -> str:
    """Its condition is asked, and counts as false."""
    begin, end = condition_of(bare(text))
    return _put(text, (begin, end), f"({text[begin:end]}) && false")


def empty(text: str) -> str:
    """Its value is what nothing was done for."""
    return _put(text, value_of(bare(text)), "{}")


def default(text: str) -> str:
    """What it declares begins as its type does without a word."""
    code = bare(text)
    ends = [i for i in outermost(code, 0, len(code)) if code.startswith(" = ", i)]
    begin = ends[0] if ends else code.find("{")
    if not re.fullmatch(r"[\w:][\w:<>,&* ]* \w+", code[:begin]) or code.startswith("return "):
        raise NotUnderstoodError("it declares nothing that has a value")
    return text[:begin] + "{};"


def increased(text: str) -> str:
    """Its value is one more."""
    begin, end = value_of(bare(text))
    return _put(text, (begin, end), f"({text[begin:end]}) + 1")


def peeked(text: str) -> str:
    """What it increments has the value, but stays as it is."""
    return _once(text, r"\+\+(\w+)", r"(\1 + 1)")


def alone(text: str) -> str:
    """What it appends takes the place of all that was there."""
    return _once(text, r"(\w+)\.push_back\((.*)\);", r"\1 = {\2};")


def swap(old: str, new: str) -> Operator:
    """A word or a binary operator, which occurs once, becomes another."""
    pattern = rf"\b{re.escape(old)}\b" if old[0].isalnum() else rf"(?<= ){re.escape(old)}(?=\s)"
    return lambda text: _once(text, pattern, new)


def without(nth: int) -> Operator:
    """Its condition lacks the nth operand of `||` or `&&`, counted from 1."""

    def operator(text: str) -> str:
        _, operands = operands_of(bare(text))
        begin, end = _nth(operands, nth)
        return _put(text, (begin, operands[1][0]) if nth == 1 else (operands[nth - 2][1], end), "")

    return operator


def excepted(nth: int) -> Operator:
    """Where the nth of two operands of `||` makes its condition true, it makes it false."""

    def operator(text: str) -> str:
        joined, operands = operands_of(bare(text))
        if joined != "||" or len(operands) != 2:
            raise NotUnderstoodError("its condition is not one of two")
        begin, end = _nth(operands, nth)
        other = operands[2 - nth]
        return _put(text, (operands[0][0], operands[1][1]), f"!({text[begin:end]}) && ({text[other[0] : other[1]]})")

    return operator


def last_argument(new: str) -> Operator:
    """The last argument of what its condition calls, or of the braces that initialise what it declares."""
    return lambda text: _put(text, last_argument_of(bare(text)), new)


def by_member(name: str) -> Operator:
    """What `==` compares in its condition is compared by one member alone."""

    def operator(text: str) -> str:
        begin, end = condition_of(bare(text))
        sides = text[begin:end].split(" == ")
        if len(sides) != 2:
            raise NotUnderstoodError("it does not compare two")
        return _put(text, (begin, end), " == ".join(f"{side}.{name}" for side in sides))

    return operator


def then(inner: Operator) -> Operator:
    """Done to the statement under the `if` or `while`."""

    def operator(text: str) -> str:
        begin = branch_of(bare(text))
        return text[:begin] + inner(text[begin:])

    return operator


def _nth(operands: list[Span], nth: int) -> Span:
    if not 1 <= nth <= len(operands):
        raise NotUnderstoodError(f"its condition has {len(operands)} operands")
    return operands[nth - 1]


def _once(text: str, pattern: str, new: str) -> str:
    found = list(re.finditer(pattern, bare(text)))
    if len(found) != 1:
        raise NotUnderstoodError(f"{pattern} is found {len(found)} times")
    match = re.compile(pattern).match(text, found[0].start())
    if match is None:
        raise NotUnderstoodError(f"{pattern} is found in a literal")
    return _put(text, match.span(), match.expand(new))
