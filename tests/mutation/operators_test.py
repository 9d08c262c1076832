"""What each operator makes of a statement, and what it refuses; where marked statements begin and end."""

from __future__ import annotations

import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

import markers
import mutants
from mutation import problems_of
from operators import (
    Operator,
    alone,
    always,
    by_member,
    default,
    drop,
    empty,
    excepted,
    ignored,
    increased,
    last_argument,
    mutate,
    never,
    peeked,
    swap,
    then,
    without,
)
from statements import NotUnderstoodError

MADE: list[tuple[Operator, str, str]] = [
    (drop, "if (a) return b;", ";"),
    (always, "if (a || b(c)) return d;", "if (true) return d;"),
    (always, "if (const int a = b(); a > 1) return a;", "if (const int a = b(); true) return a;"),
    (always, "return a ? b : c;", "return true ? b : c;"),
    (always, "const bool a = b && c;", "const bool a = true;"),
    (never, "while (a) {\n  b();\n}", "while (false) {\n  b();\n}"),
    (ignored, "if (a || b) return;", "if ((a || b) && false) return;"),
    (empty, "return a(b, c);", "return {};"),
    (default, "const Status a = b(c);", "const Status a{};"),
    (default, "std::vector<Map<int, A*>> a{b, c};", "std::vector<Map<int, A*>> a{};"),
    (increased, "a = b ? c : d;", "a = (b ? c : d) + 1;"),
    (peeked, "a = ++b_;", "a = (b_ + 1);"),
    (alone, "a.push_back(b(c, d));", "a = {b(c, d)};"),
    (swap("<", "<="), "return a->b(c << 1, '<') < d;", "return a->b(c << 1, '<') <= d;"),
    (swap("false", "true"), "{a, false, is_false},", "{a, true, is_false},"),
    (without(1), "return a && b && c;", "return b && c;"),
    (without(2), "return a && b && c;", "return a && c;"),
    (without(3), "return a && b && c;", "return a && b;"),
    (without(2), "if (a && b || c && (d || e)) return;", "if (a && b) return;"),
    (without(1), "return a || b ? c : d || e;", "return b ? c : d || e;"),
    (without(2), "if (a ||\n    b) {\n  c();\n}", "if (a) {\n  c();\n}"),
    (excepted(1), "if (!a || b) return c;", "if (!(!a) && (b)) return c;"),
    (excepted(2), "if (!a || b) return c;", "if (!(b) && (!a)) return c;"),
    (last_argument("0"), "if (a.b(c(1, 2), d)) return;", "if (a.b(c(1, 2), 0)) return;"),
    (last_argument("0"), "A a{b(c, d), e};", "A a{b(c, d), 0};"),
    (last_argument("0"), "a(b);", "a(0);"),
    (by_member("c"), "if (a.b() == d) return;", "if (a.b().c == d.c) return;"),
    (then(always), "if (a) return b || c;", "if (a) return true;"),
    (then(then(drop)), "while (a) if (b) c();", "while (a) if (b) ;"),
]
REFUSED: list[tuple[Operator, str]] = [
    (drop, ";"),
    (always, "if (true) a();"),
    (always, "a(b);"),
    (never, "for (;;) a();"),
    (empty, "return {};"),
    (default, "A a{};"),
    (default, "a = b;"),
    (default, "return A{b};"),
    (increased, "return;"),
    (peeked, "a = ++b + ++c;"),
    (peeked, 'a("++b");'),
    (alone, "a.clear();"),
    (swap("<", "<="), "return a < b && c < d;"),
    (swap("<", "<="), "return a <= b;"),
    (swap("<", "<"), "return a < b;"),
    (without(1), "return a(b || c);"),
    (without(3), "return a || b;"),
    (without(0), "return a || b;"),
    (excepted(1), "return a && b;"),
    (last_argument("0"), "a(0);"),
    (last_argument("0"), "a + b;"),
    (by_member("c"), "return a != b;"),
    (then(drop), "a();"),
]
MARKED = """\
uint64_t a() const { return ++b_; }  // mutant: function
void c() {
  // Why.
  // mutant: above
  // The brackets of text do not count: ).
  if (d(")") || e('}')) {  // An aside. {
    f([&](int g) { h(g); });
  } else if (i) {
    j();
  } else
    k();
  for (int l : m) l();  // mutant: loop
  auto n = [&] {  // mutant: lambda
    o();
  };
}
const Row kRows[] = {
    {p, q},  // mutant: row
};
"""
STATEMENTS = {
    "function": "return ++b_;",
    "above": "if (d(\")\") || e('}')) { f([&](int g) { h(g); }); } else if (i) { j(); } else k();",
    "loop": "for (int l : m) l();",
    "lambda": "auto n = [&] { o(); };",
    "row": "{p, q}",
}


class OperatorsTest(unittest.TestCase):
    def test_each_makes_what_it_says(self) -> None:
        for operator, statement, expected in MADE:
            with self.subTest(statement):
                self.assertEqual(mutate(statement, operator), expected)

    def test_none_answers_what_it_was_given(self) -> None:
        for operator, statement in REFUSED:
            with self.subTest(statement), self.assertRaises(NotUnderstoodError):
                mutate(statement, operator)


class MarkersTest(unittest.TestCase):
    def test_the_statement_that_a_marker_marks(self) -> None:
        for name, expected in STATEMENTS.items():
            seen: list[str] = []

            def operator(statement: str, seen: list[str] = seen) -> str:
                seen.append(" ".join(statement.split()))
                return "MUTATED"

            with self.subTest(name):
                mutated = markers.apply(MARKED, name, operator)
                self.assertEqual(seen, [expected])
                self.assertEqual(mutated.count("MUTATED"), 1)

    def test_what_surrounds_a_statement_stays(self) -> None:
        mutated = markers.apply(MARKED, "loop", drop)
        self.assertEqual(mutated, MARKED.replace("for (int l : m) l();", ";"))

    def test_what_does_not_fit_is_told(self) -> None:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "allocator" / "a.cpp"
            file.parent.mkdir()
            file.write_text("  a();  // mutant: twice\n  b();  // mutant: twice\n  c();  // mutant: idle\n")
            chosen = [mutants.Mutant("x", {"twice": drop}), mutants.Mutant("y", {"absent": drop})]
            problems = problems_of([*chosen, mutants.Mutant("z", {"idle": never})], Path(folder))
        self.assertEqual(
            problems,
            [
                "marker twice occurs 2 times",
                "marker idle is named by no mutant",
                "marker twice is named by no mutant",
                "y: marker absent is not in allocator/",
                "z: it has no value",
            ],
        )


if __name__ == "__main__":
    unittest.main()
