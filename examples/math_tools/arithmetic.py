"""A calculator that evaluates nothing but arithmetic, and the reward of an answer."""

import ast
import math
import operator
import re
from fractions import Fraction

MAX_LENGTH = 100
LIMIT = 10**12
"""Beyond this a number is none a word problem is about, and floats begin to lose digits."""
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
ANSWER = re.compile(r"answer:\s*(\S+)", re.IGNORECASE)
NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30}|/[1-9]\d{0,29})?")
TOLERANCE = 1e-5


def calculate(expression: str) -> str:
    """Value of an expression of numbers, + - * / ** and parentheses; raises ValueError with a short reason."""
    if len(expression) > MAX_LENGTH:
        raise ValueError("too long")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("no expression") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("too large") from None
    return str(int(value)) if value == int(value) else f"{value:.12g}"


def _value(node: ast.expr) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = node.value
    elif isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](_value(node.operand))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > 64:
            raise ValueError("too large")
        value = OPERATORS[type(node.op)](left, right)
    else:
        raise ValueError("no expression")
    if isinstance(value, complex) or not abs(value) <= LIMIT:
        raise ValueError("too large")
    return value


def score(text: str, result: str) -> float:
    """1 if the last ``answer: ...`` of what was said is the result, else 0; numbers are equal within Calc-X's 1e-5."""
    answers = ANSWER.findall(text)
    if not answers:
        return 0.0
    answer, result = answers[-1].lstrip("(").rstrip(".)"), result.strip()
    if answer.casefold() == result.casefold():  # also the letter of a choice
        return 1.0
    numbers = _number(answer), _number(result)
    return float(None not in numbers and math.isclose(*numbers, abs_tol=TOLERANCE))


def _number(text: str) -> float | None:
    """Only a number, no expression: or a policy is paid for what it left to be calculated."""
    plain = text.replace(",", "").replace("_", "")
    return float(Fraction(plain)) if NUMBER.fullmatch(plain) else None
