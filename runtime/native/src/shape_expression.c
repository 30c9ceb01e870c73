/* Integer expressions over the sizes, strides and numbers of a call's values: artifact_store/format/expressions.py, in postfix form.
 *
 * A program is a row of (code, a, b). Codes below 16 push: 0 the constant a; 1 the integer value a; 2, 3 size and stride b of the tensor
 * value a; 4 its storage offset. Codes from 16 on are the operators, in the order of expressions.OPERATORS, each of `a` operands. */
#include "native.h"

#define DEPTH 64
#define FIRST 16

enum { ADD = FIRST, MUL, SUB, FLOORDIV, MOD, MIN, MAX, POW, NEG, EQ, NE, LT, LE, GT, GE, AND, OR, NOT, IF, ABS, END };

static int read_leaf(const int64_t *step, PyObject *value, int64_t *result) {
    if (step[0] == 1) {
        if (!PyLong_CheckExact(value)) return 0;
        int overflow;
        *result = PyLong_AsLongLongAndOverflow(value, &overflow);
        return !overflow;
    }
    if (!is_tensor(value)) return 0;
    void *handle = HANDLE(value);
    if (step[0] == 4) return !layout.offset(handle, result);
    int64_t dim, *list;
    if (layout.dim(handle, &dim) || step[2] >= dim || (step[0] == 2 ? layout.sizes : layout.strides)(handle, &list)) return 0;
    *result = list[step[2]];
    return 1;
}

static int floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *rest) {
    if (b == 0 || (a == INT64_MIN && b == -1)) return 0;
    *quotient = a / b;
    *rest = a % b;
    if (*rest && (*rest < 0) != (b < 0)) {
        *quotient -= 1;
        *rest += b;
    }
    return 1;
}

static int power(int64_t base, int64_t exponent, int64_t *result) {
    if (exponent < 0) return 0;
    *result = 1;
    for (int64_t i = 0; i < exponent; i++) {
        if (__builtin_mul_overflow(*result, base, result)) return 0;
        if (*result == 0 || (i == 1 && *result == 1)) break; /* 0, 1 and -1 stay what they are, by the parity of the exponent */
    }
    if (base == -1) *result = exponent % 2 ? -1 : 1;
    return 1;
}

static int combine(int64_t code, int64_t a, int64_t b, int64_t *result) {
    int64_t other;
    switch (code) {
    case ADD: return !__builtin_add_overflow(a, b, result);
    case MUL: return !__builtin_mul_overflow(a, b, result);
    case SUB: return !__builtin_sub_overflow(a, b, result);
    case FLOORDIV: return floor_divide(a, b, result, &other);
    case MOD: return floor_divide(a, b, &other, result);
    case MIN: *result = a < b ? a : b; return 1;
    case MAX: *result = a > b ? a : b; return 1;
    case POW: return power(a, b, result);
    case EQ: *result = a == b; return 1;
    case NE: *result = a != b; return 1;
    case LT: *result = a < b; return 1;
    case LE: *result = a <= b; return 1;
    case GT: *result = a > b; return 1;
    case GE: *result = a >= b; return 1;
    case AND: *result = a && b; return 1;
    case OR: *result = a || b; return 1;
    default: return 0;
    }
}

int shape_holds(const int64_t *program, Py_ssize_t count, PyObject *const *values) {
    int64_t stack[DEPTH];
    int top = 0;
    for (const int64_t *step = program; step < program + count; step += 3) {
        if (step[0] < FIRST) {
            if (step[0] == 0) stack[top++] = step[1];
            else if (!read_leaf(step, values[step[1]], &stack[top++])) return 0;
            continue;
        }
        int64_t *first = stack + top - step[1];
        switch (step[0]) {
        case NEG:
            if (__builtin_sub_overflow((int64_t)0, *first, first)) return 0;
            break;
        case NOT: *first = !*first; break;
        case ABS:
            if (*first < 0 && __builtin_sub_overflow((int64_t)0, *first, first)) return 0;
            break;
        case IF: *first = *first ? first[1] : first[2]; break;
        default:
            for (int64_t i = 1; i < step[1]; i++)
                if (!combine(step[0], *first, first[i], first)) return 0;
        }
        top = (int)(first - stack) + 1;
    }
    return stack[0] != 0;
}

int shape_problem(const int64_t *program, Py_ssize_t count, int values) {
    int64_t top = 0;
    int good = count > 0 && count % 3 == 0;
    for (Py_ssize_t i = 0; good && i < count; i += 3) {
        int64_t code = program[i], a = program[i + 1], b = program[i + 2];
        if (code < FIRST) {
            good = code == 0 || (code > 0 && code <= 4 && a >= 0 && a < values && b >= 0);
            top += 1;
        } else {
            int64_t wanted = code == NEG || code == NOT || code == ABS ? 1 : code == IF ? 3 : 0;
            good = code < END && a >= 1 && a <= top && (!wanted || a == wanted);
            top -= a - 1;
        }
        good = good && top <= DEPTH;
    }
    if (good && top == 1) return 0;
    PyErr_SetString(PyExc_ValueError, "malformed shape program");
    return -1;
}
