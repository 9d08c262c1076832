"""As much of C++ as mutants need: where a statement ends, and what its condition or value is.

Sources are read as clang-format leaves them. Positions are offsets in a text.
"""

from __future__ import annotations

import re

LITERAL_OR_COMMENT = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'""", re.DOTALL
)
BRACKETS = {"(": ")", "[": "]", "{": "}"}
CONTROL = re.compile(r"(if|while|for|switch)(?: constexpr)? \(")
CONDITIONAL = re.compile(r"(if|while) \(")

Span = tuple[int, int]


class NotUnderstoodError(ValueError):
    """The text is not what was expected of it."""


def without_comments(text: str) -> str:
    """Of the same length and with the same lines."""
    return LITERAL_OR_COMMENT.sub(
        lambda found: re.sub(r"[^\n]", " ", found[0]) if found[0].startswith("/") else found[0], text
    )


def bare(text: str) -> str:
    """Without comments and without what literals hold, so that brackets and operators are all code's."""
    return LITERAL_OR_COMMENT.sub(
        lambda found: re.sub(r"[^\n]", " " if found[0].startswith("/") else "_", found[0]), text
    )


def closing(code: str, at: int) -> int:
    """Where the bracket that opens at `at` closes."""
    close = BRACKETS[code[at]]
    for i in outermost(code, at + 1, len(code)):
        if code[i] == close:
            return i
    raise NotUnderstoodError(f"a bracket that does not close: {code[at : at + 40]!r}")


def outermost(code: str, begin: int, end: int) -> list[int]:
    """What stands in no brackets between the two positions, up to a bracket that closes another before them."""
    positions = []
    depth = 0
    for i in range(begin, end):
        if code[i] in BRACKETS:
            depth += 1
        if depth == 0:
            positions.append(i)
        if code[i] in BRACKETS.values():
            depth -= 1
            if depth < 0:
                break
    return positions


def statement_end(code: str, begin: int) -> int:
    """Past the statement, block or row in braces that begins there; `code` is bare."""
    begin += len(code[begin:]) - len(code[begin:].lstrip())
    if code[begin : begin + 1] == "{":
        return closing(code, begin) + 1
    if (control := CONTROL.match(code, begin)) is not None:
        end = statement_end(code, closing(code, control.end() - 1) + 1)
        other = re.compile(r"\s*else\b").match(code, end)
        return end if control[1] != "if" or other is None else statement_end(code, other.end())
    for i in outermost(code, begin, len(code)):
        if code[i] == ";":
            return i + 1
        if code[i] == "}":
            break
    raise NotUnderstoodError(f"no statement: {code[begin : begin + 60]!r}")


def statement_at(text: str, begin: int) -> Span:
    """The statement that begins there. Of a function that is one line, the statement in its braces."""
    code = bare(text)
    line_end = code.find("\n", begin)
    line = code[begin : len(code) if line_end < 0 else line_end].rstrip()
    if line.endswith("}") and not line.startswith("{"):
        opening = max(i for i in range(len(line)) if line[i] == "{" and closing(line, i) == len(line) - 1)
        begin += opening + 2
    return begin, statement_end(code, begin)


def branch_of(code: str) -> int:
    """Where the statement under an `if` or `while` begins."""
    conditional = CONDITIONAL.match(code)
    if conditional is None:
        raise NotUnderstoodError("neither `if` nor `while`")
    begin = closing(code, conditional.end() - 1) + 1
    return begin + len(code[begin:]) - len(code[begin:].lstrip())


def value_of(code: str) -> Span:
    """What an `if` or `while` asks, `return` answers, or `=` assigns."""
    if (conditional := CONDITIONAL.match(code)) is not None:
        begin, end = conditional.end(), closing(code, conditional.end() - 1)
        first = [i for i in outermost(code, begin, end) if code[i] == ";"]
        return (first[-1] + 2 if first else begin), end
    if not code.endswith(";"):
        raise NotUnderstoodError("it has no value")
    if code.startswith("return "):
        return len("return "), len(code) - 1
    for i in outermost(code, 0, len(code)):
        if code.startswith(" = ", i):
            return i + len(" = "), len(code) - 1
    raise NotUnderstoodError("it has no value")


def condition_of(code: str) -> Span:
    """Its value, or what that depends on where it is `condition ? one : other`."""
    begin, end = value_of(code)
    for i in outermost(code, begin, end):
        if code.startswith(" ? ", i):
            return begin, i
    return begin, end


def operands_of(code: str) -> tuple[str, list[Span]]:
    """The operator that its condition consists of, `||` or `&&`, and that operator's operands."""
    begin, end = condition_of(code)
    places = outermost(code, begin, end)
    for operator in ("||", "&&"):
        found = [i for i in places if code.startswith(f" {operator}", i)]
        if found:
            starts = [begin, *(i + len(operator) + 2 for i in found)]
            return operator, list(zip(starts, [*found, end], strict=True))
    raise NotUnderstoodError("its condition has neither `||` nor `&&`")


def last_argument_of(code: str) -> Span:
    """Of the call or the braces that the condition, or else the statement, ends with."""
    begin, end = value_of(code) if CONDITIONAL.match(code) else (0, len(code.removesuffix(";")))
    openings = [i for i in range(begin, end) if code[i] in BRACKETS and closing(code, i) == end - 1]
    if not openings:
        raise NotUnderstoodError("it does not end with arguments")
    commas = [i for i in outermost(code, openings[0] + 1, end - 1) if code[i] == ","]
    return (commas[-1] + 2 if commas else openings[0] + 1), end - 1
