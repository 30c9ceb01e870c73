"""The updates of `torch.optim`, element by element: what each optimiser does to a parameter, its gradient and its state.

torch's `adam(params, grads, …)` and its kin get lists of tensors and the options of a parameter group. A `Rule` says the same as a
function of one element: `numbers` are computed on the host from the options and the step (in double precision, as torch's own loops do),
`update` is compiled once for each choice of `flags` and dtypes, whatever the sizes and the numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from precast.runtime.fingerprint import bytecode

Options = Mapping[str, Any]
Flags = Mapping[str, bool]
Tensors = dict[str, Any]
Numbers = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """`tensors(flags)`: the lists whose tensors an update takes, parameters and gradients first; `update` gives new values of those that
    it changes, by name. `numbers(options, step, own)`: the scalars; `own` holds the values of the lists in `scalars` before the step.

    `flags(options)`: what is compiled in. `after(options, step, own)`: new values of the lists in `scalars`.
    """

    tensors: Callable[[Flags], tuple[str, ...]]
    flags: Callable[[Options], dict[str, bool]]
    numbers: Callable[[Options, Any, Mapping[str, float]], Numbers]
    update: Callable[[Flags, Tensors, Numbers], Tensors]
    steps: bool = True
    on_device: bool = False
    """Whether `numbers` may be computed from a step that is a tensor."""
    scalars: tuple[str, ...] = ()
    after: Callable[[Options, float, Mapping[str, float]], dict[str, float]] | None = None
    chosen: Callable[[Options, float, Mapping[str, float]], dict[str, bool]] | None = None
    """Flags that depend on the step."""


def _decay(options: Options) -> dict[str, bool]:
    decoupled = bool(options.get("decoupled_weight_decay", False))
    return {
        "maximize": bool(options["maximize"]),
        "decoupled": decoupled and options["weight_decay"] != 0,
        "decay": not decoupled and options["weight_decay"] != 0,
    }


def _decay_numbers(options: Options) -> Numbers:
    return {"kept": 1 - options["lr"] * options["weight_decay"], "weight_decay": options["weight_decay"]}


def _start(flags: Flags, t: Tensors, n: Numbers) -> tuple[Any, Any]:
    """The parameter and its gradient, weight decay included."""
    param, grad = t["params"], -t["grads"] if flags["maximize"] else t["grads"]
    if flags["decay"]:
        grad = grad + param * n["weight_decay"]
    return (param * n["kept"] if flags.get("decoupled") else param), grad


def _sgd_tensors(flags: Flags) -> tuple[str, ...]:
    return ("params", "grads", "momentum_buffer_list") if flags["momentum"] else ("params", "grads")


def _sgd_flags(options: Options) -> dict[str, bool]:
    momentum = options["momentum"] != 0
    return {**_decay(options), "momentum": momentum, "nesterov": momentum and bool(options["nesterov"]), "first": False}


def _sgd_numbers(options: Options, step: Any, own: Mapping[str, float]) -> Numbers:
    return {
        "weight_decay": options["weight_decay"],
        "momentum": options["momentum"],
        "damped": 1 - options["dampening"],
        "rate": options["lr"],
    }


def _sgd(flags: Flags, t: Tensors, n: Numbers) -> Tensors:
    param, grad = _start(flags, t, n)
    if not flags["momentum"]:
        return {"params": param - grad * n["rate"]}
    buffer = grad if flags["first"] else t["momentum_buffer_list"] * n["momentum"] + grad * n["damped"]
    grad = grad + buffer * n["momentum"] if flags["nesterov"] else buffer
    return {"params": param - grad * n["rate"], "momentum_buffer_list": buffer}


def _moments(flags: Flags, t: Tensors, grad: Any, n: Numbers) -> tuple[Any, Any]:
    return t["exp_avgs"] * n["beta1"] + grad * n["rest1"], t["exp_avg_sqs"] * n["beta2"] + (grad * n["rest2"]) * grad


def _rest_of_power(base: Any, step: Any) -> Any:
    """`1 - base ** step`. Where the step lies on the device this is in its own precision, in which a power close to 1 would lose digits."""
    return 1 - base**step if isinstance(step, (int, float)) else -(step * step.new_full((), base).log()).expm1()


def _betas(options: Options) -> Numbers:
    beta1, beta2 = options["beta1"], options["beta2"]
    return {**_decay_numbers(options), "beta1": beta1, "rest1": 1 - beta1, "beta2": beta2, "rest2": 1 - beta2, "eps": options["eps"]}


def _adam_tensors(flags: Flags) -> tuple[str, ...]:
    return ("params", "grads", "exp_avgs", "exp_avg_sqs", *(("max_exp_avg_sqs",) if flags["amsgrad"] else ()))


def _adam_flags(options: Options) -> dict[str, bool]:
    return {**_decay(options), "amsgrad": bool(options["amsgrad"])}


def _adam_numbers(options: Options, step: Any, own: Mapping[str, float]) -> Numbers:
    corrected = _rest_of_power(options["beta2"], step) ** 0.5
    return {**_betas(options), "corrected": corrected, "rate": options["lr"] / _rest_of_power(options["beta1"], step)}


def _adam(flags: Flags, t: Tensors, n: Numbers) -> Tensors:
    param, grad = _start(flags, t, n)
    mean, square = _moments(flags, t, grad, n)
    made = {"exp_avgs": mean, "exp_avg_sqs": square}
    if flags["amsgrad"]:
        square = made["max_exp_avg_sqs"] = torch.maximum(t["max_exp_avg_sqs"], square)
    return {"params": param - (mean * n["rate"]) / (square.sqrt() / n["corrected"] + n["eps"]), **made}


def _nadam_mu(options: Options, step: float) -> float:
    return float(options["beta1"] * (1.0 - 0.5 * (0.96 ** (step * options["momentum_decay"]))))


def _nadam_after(options: Options, step: float, own: Mapping[str, float]) -> dict[str, float]:
    return {"mu_products": own["mu_products"] * _nadam_mu(options, step)}


def _nadam_numbers(options: Options, step: float, own: Mapping[str, float]) -> Numbers:
    mu, following = _nadam_mu(options, step), _nadam_mu(options, step + 1)
    product, lr = _rounded(own["mu_products"] * mu), options["lr"]
    return {
        **_betas(options),
        "corrected": _rest_of_power(options["beta2"], step),
        "rate": lr * (1.0 - mu) / (1.0 - product),
        "mean_rate": lr * following / (1.0 - product * following),
    }


def _rounded(value: float) -> float:
    """As a tensor of the dtype in which torch keeps such scalars holds it."""
    return float(torch.tensor(value, dtype=torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32))


def _nadam(flags: Flags, t: Tensors, n: Numbers) -> Tensors:
    param, grad = _start(flags, t, n)
    mean, square = _moments(flags, t, grad, n)
    scale = (square / n["corrected"]).sqrt() + n["eps"]
    return {"params": param - (grad * n["rate"]) / scale - (mean * n["mean_rate"]) / scale, "exp_avgs": mean, "exp_avg_sqs": square}


def _radam_rho(options: Options, step: float) -> tuple[float, float]:
    beta2 = options["beta2"]
    limit = 2 / (1 - beta2) - 1
    return limit, limit - 2 * step * (beta2**step) / (1 - beta2**step)


def _radam_chosen(options: Options, step: float, own: Mapping[str, float]) -> dict[str, bool]:
    return {"rectified": _radam_rho(options, step)[1] > 5.0}


def _radam_numbers(options: Options, step: float, own: Mapping[str, float]) -> Numbers:
    limit, rho = _radam_rho(options, step)
    rectification = ((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)) ** 0.5 if rho > 5.0 else 1.0
    corrected = _rest_of_power(options["beta2"], step) ** 0.5
    return {**_betas(options), "rate": options["lr"] / _rest_of_power(options["beta1"], step), "factor": corrected * rectification}


def _radam(flags: Flags, t: Tensors, n: Numbers) -> Tensors:
    param, grad = _start(flags, t, n)
    mean, square = _moments(flags, t, grad, n)
    move = mean * n["rate"]
    if flags["rectified"]:
        move = move * (n["factor"] / (square.sqrt() + n["eps"]))
    return {"params": param - move, "exp_avgs": mean, "exp_avg_sqs": square}


def _adamax_numbers(options: Options, step: float, own: Mapping[str, float]) -> Numbers:
    return {**_betas(options), "rate": options["lr"] / _rest_of_power(options["beta1"], step)}


def _adamax(flags: Flags, t: Tensors, n: Numbers) -> Tensors:
    param, grad = _start(flags, t, n)
    mean = t["exp_avgs"] * n["beta1"] + grad * n["rest1"]
    largest = torch.maximum(t["exp_infs"] * n["beta2"], grad.abs() + n["eps"])
    return {"params": param - (mean * n["rate"]) / largest, "exp_avgs": mean, "exp_infs": largest}


def _rmsprop_tensors(flags: Flags) -> tuple[str, ...]:
    more = (*(("grad_avgs",) if flags["centered"] else ()), *(("momentum_buffer_list",) if flags["momentum"] else ()))
    return ("params", "grads", "square_avgs", *more)


def _rmsprop_flags(options: Options) -> dict[str, bool]:
    return {**_decay(options), "centered": bool(options["centered"]), "momentum": options["momentum"] > 0}


def _rmsprop_numbers(options: Options, step: float, own: Mapping[str, float]) -> Numbers:
    alpha = options["alpha"]
    plain = {name: options[name] for name in ("weight_decay", "eps", "momentum")}
    return {**plain, "alpha": alpha, "rest": 1 - alpha, "rate": options["lr"]}


def _rmsprop(flags: Flags, t: Tensors, n: Numbers) -> Tensors:
    param, grad = _start(flags, t, n)
    square = t["square_avgs"] * n["alpha"] + (grad * n["rest"]) * grad
    made = {"square_avgs": square}
    if flags["centered"]:
        mean = made["grad_avgs"] = t["grad_avgs"] * n["alpha"] + grad * n["rest"]
        square = square - mean * mean
    scale = square.sqrt() + n["eps"]
    if not flags["momentum"]:
        return {"params": param - (grad * n["rate"]) / scale, **made}
    buffer = t["momentum_buffer_list"] * n["momentum"] + grad / scale
    return {"params": param - buffer * n["rate"], "momentum_buffer_list": buffer, **made}


def _adagrad_numbers(options: Options, step: float, own: Mapping[str, float]) -> Numbers:
    rate = options["lr"] / (1 + (step - 1) * options["lr_decay"])
    return {"weight_decay": options["weight_decay"], "eps": options["eps"], "rate": rate}


def _adagrad(flags: Flags, t: Tensors, n: Numbers) -> Tensors:
    param, grad = _start(flags, t, n)
    total = t["state_sums"] + grad * grad
    return {"params": param - (grad * n["rate"]) / (total.sqrt() + n["eps"]), "state_sums": total}


def _adadelta_numbers(options: Options, step: float, own: Mapping[str, float]) -> Numbers:
    rho = options["rho"]
    return {"weight_decay": options["weight_decay"], "eps": options["eps"], "rho": rho, "rest": 1 - rho, "rate": options["lr"]}


def _adadelta(flags: Flags, t: Tensors, n: Numbers) -> Tensors:
    param, grad = _start(flags, t, n)
    square = t["square_avgs"] * n["rho"] + (grad * n["rest"]) * grad
    move = (t["acc_deltas"] + n["eps"]).sqrt() / (square + n["eps"]).sqrt() * grad
    moved = t["acc_deltas"] * n["rho"] + (move * n["rest"]) * move
    return {"params": param - move * n["rate"], "square_avgs": square, "acc_deltas": moved}


def _rprop_numbers(options: Options, step: float, own: Mapping[str, float]) -> Numbers:
    return {name: options[name] for name in ("etaminus", "etaplus", "step_size_min", "step_size_max")}


def _rprop(flags: Flags, t: Tensors, n: Numbers) -> Tensors:
    grad = -t["grads"] if flags["maximize"] else t["grads"]
    turn = grad * t["prevs"]
    size = t["step_sizes"]
    size = torch.where(turn > 0, size * n["etaplus"], torch.where(turn < 0, size * n["etaminus"], size))
    size = torch.clamp(size, n["step_size_min"], n["step_size_max"])
    grad = torch.where(turn < 0, 0.0, grad)
    return {"params": t["params"] - grad.sign() * size, "prevs": grad, "step_sizes": size}


def _asgd_chosen(options: Options, step: float, own: Mapping[str, float]) -> dict[str, bool]:
    return {"averaged": own["mus"] != 1}


def _asgd_numbers(options: Options, step: float, own: Mapping[str, float]) -> Numbers:
    eta = own["etas"]
    return {"weight_decay": options["weight_decay"], "kept": 1 - options["lambd"] * eta, "rate": eta, "mu": own["mus"]}


def _asgd_after(options: Options, step: float, own: Mapping[str, float]) -> dict[str, float]:
    eta = options["lr"] / ((1 + options["lambd"] * options["lr"] * step) ** options["alpha"])
    return {"etas": eta, "mus": 1 / max(1, step - options["t0"])}


def _asgd(flags: Flags, t: Tensors, n: Numbers) -> Tensors:
    param, grad = _start(flags, t, n)
    param = param * n["kept"] - grad * n["rate"]
    average = t["axs"] + (param - t["axs"]) * n["mu"] if flags["averaged"] else param
    return {"params": param, "axs": average}


def _maximize(options: Options) -> dict[str, bool]:
    return {"maximize": bool(options["maximize"])}


def _lists(*names: str) -> Callable[[Flags], tuple[str, ...]]:
    return lambda flags: ("params", "grads", *names)


RULES: dict[str, Rule] = {
    "sgd": Rule(_sgd_tensors, _sgd_flags, _sgd_numbers, _sgd, steps=False, on_device=True),
    "adam": Rule(_adam_tensors, _adam_flags, _adam_numbers, _adam, on_device=True),
    "nadam": Rule(_lists("exp_avgs", "exp_avg_sqs"), _decay, _nadam_numbers, _nadam, scalars=("mu_products",), after=_nadam_after),
    "radam": Rule(_lists("exp_avgs", "exp_avg_sqs"), _decay, _radam_numbers, _radam, chosen=_radam_chosen),
    "adamax": Rule(_lists("exp_avgs", "exp_infs"), _decay, _adamax_numbers, _adamax, on_device=True),
    "rmsprop": Rule(_rmsprop_tensors, _rmsprop_flags, _rmsprop_numbers, _rmsprop, on_device=True),
    "adagrad": Rule(_lists("state_sums"), _decay, _adagrad_numbers, _adagrad, on_device=True),
    "adadelta": Rule(_lists("square_avgs", "acc_deltas"), _decay, _adadelta_numbers, _adadelta, on_device=True),
    "rprop": Rule(_lists("prevs", "step_sizes"), _maximize, _rprop_numbers, _rprop, on_device=True),
    "asgd": Rule(_lists("axs"), _decay, _asgd_numbers, _asgd, scalars=("mus", "etas"), after=_asgd_after, chosen=_asgd_chosen),
}
"""By the name of torch's function, which is that of its module: `torch.optim.adam.adam`. (AdamW's is Adam's.)"""


def digest_of(rule: Rule) -> str:
    """Another one whenever the rule's code is another: part of the key of what is compiled from it."""
    functions = (rule.tensors, rule.numbers, rule.update, _start, _moments, _betas, _decay_numbers)
    return hashlib.sha256("".join(bytecode.digest(f.__code__) for f in functions).encode()).hexdigest()[:16]


__all__ = ["RULES", "Flags", "Numbers", "Options", "Rule", "Tensors", "digest_of"]
