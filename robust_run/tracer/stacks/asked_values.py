"""Whether a line of Python asks for a value that only a GPU may know, without a word for it: `if loss > x`, `float(loss)`. Pure.

Safe only where nothing else in the line may take long. So the line must be a whole statement that consists of names, numbers,
comparisons and arithmetic, and at most of torch's tests of a value. What takes a second in C and looks like that on a CPU is no
number: `in`, `==` of two things (large containers), powers and calls are left out; so is `while`, which may wait for a thread.
"""

from __future__ import annotations

import ast

#: A longer line is not looked at.
LINE_CHARACTERS = 300
#: Builtins that turn one value into a number of Python's.
_NUMBERS = frozenset({"bool", "float", "int"})
#: Functions of torch, and methods, of which a program asks the truth.
_TESTS = frozenset({"isnan", "isinf", "isfinite", "logical_or", "logical_and", "logical_not", "any", "all"})
_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def asked_in(line: str) -> str:
    """Return the builtin by which a line asks for a value: `bool()` also where it is a truth test; "" where it asks for none."""
    text = line.strip()
    if not text.isascii() or len(text) > LINE_CHARACTERS:
        return ""
    if text.startswith(("if ", "elif ")) and text.endswith(":"):
        text = f"{text.removeprefix('el')} pass"
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""  # also where it is a part of a statement
    if isinstance(statement, ast.If):
        leads_on = isinstance(statement.body[0], (ast.Pass, ast.Continue, ast.Break))
        return "bool()" if leads_on and len(statement.body) == 1 and _is_asked(statement.test) else ""
    if isinstance(statement, ast.Assert):
        return "bool()" if statement.msg is None and _is_asked(statement.test) else ""
    value = statement.value if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)) else None
    return _number_of(value) if value is not None else ""


def _number_of(value: ast.expr) -> str:
    """Return the builtin that a value is made by."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name) or value.func.id not in _NUMBERS:
        return ""
    plain = len(value.args) == 1 and not value.keywords and _is_plain(value.args[0])
    return f"{value.func.id}()" if plain and not isinstance(value.args[0], ast.Constant) else ""


def _is_asked(test: ast.expr) -> bool:
    """Tell whether the truth of something is asked that may be a tensor, and of nothing that may take long by itself."""
    if isinstance(test, ast.BoolOp):
        return all(_is_known(each) for each in test.values) and any(_is_asked(each) for each in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_asked(test.operand)
    if isinstance(test, ast.Compare):
        return _is_known(test) and not all(isinstance(op, (ast.Is, ast.IsNot)) for op in test.ops)
    return _is_plain(test) and not isinstance(test, ast.Constant)


def _is_known(test: ast.expr) -> bool:
    """Tell whether a part of a test takes no time but for a value that is asked for."""
    if isinstance(test, ast.BoolOp):
        return all(_is_known(each) for each in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_known(test.operand)
    if not isinstance(test, ast.Compare):
        return _is_plain(test)
    sides = [test.left, *test.comparators]
    quick = all(
        isinstance(op, (*_ORDERED, ast.Is, ast.IsNot))
        or (isinstance(op, (ast.Eq, ast.NotEq)) and any(_is_number(side) for side in (sides[at], sides[at + 1])))
        for at, op in enumerate(test.ops)
    )
    return quick and all(_is_plain(side) for side in sides)


def _is_number(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, (int, float))


def _is_plain(value: ast.expr) -> bool:
    """Tell whether a value is made of names, numbers, arithmetic, and torch's tests."""
    if isinstance(value, ast.Constant):
        return value.value is None or isinstance(value.value, (int, float))
    if isinstance(value, ast.Name):
        return True
    if isinstance(value, ast.Attribute):
        return _is_plain(value.value)
    if isinstance(value, ast.Subscript):
        return _is_plain(value.value) and (isinstance(value.slice, ast.Constant) or _is_plain(value.slice))
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, (ast.USub, ast.Not)) and _is_plain(value.operand)
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, _ARITHMETIC) and _is_plain(value.left) and _is_plain(value.right)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not value.keywords:
        return value.func.attr in _TESTS and _is_plain(value.func.value) and all(map(_is_plain, value.args))
    return False
