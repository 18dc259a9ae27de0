#!/usr/bin/env python3
"""Writes cases.jsonl: custom losses as nodes, with the loss and the gradient that PyTorch finds for them.

Needs torch and the Python SDK (tinker 0.36). Each function is traced by torch.fx, exactly as the SDK does it, and run in
float64. "smooth" says that finite differences may be taken: not at kinks and ties."""
import json
import pathlib

import torch
import torch.nn.functional as F
from tinker.lib.public_interfaces.custom_loss import encode_graph, trace_loss

T, K = 4, 3
LOGPROBS = {1: [-0.5, -1.25, -2.0, -0.125],
            2: [[-0.5, -1.25, -2.5], [-1.0, -0.75, -3.0], [-0.25, -2.0, -1.5], [-1.75, -0.625, -0.875]]}
W = {0: 0.75, 1: [0.5, -1.5, 0.0, 2.0], 2: [[0.5, -1.0, 0.25], [1.5, 0.0, -0.5], [-2.0, 1.0, 0.75], [0.125, -0.25, 1.25]]}
N = [2, 0, 1, 3]  # integers
cases = []


def case(fn, name=None, rank=1, w=1, smooth=True):
    """fn(logprobs, w, n): w has the rank given, n is four integers."""
    handle = trace_loss(fn, {"logprobs": rank, "w": w, "n": 1}, "session")
    logprobs = torch.tensor(LOGPROBS[rank], dtype=torch.float64, requires_grad=True)
    inputs = [torch.tensor(W[w], dtype=torch.float64), torch.tensor(N)]
    loss, metrics = handle.graph(logprobs, *inputs)
    loss.backward()
    cases.append({
        "name": name or fn.__name__, "smooth": smooth,
        "inputs": [{"name": i.name, "rank": i.rank} for i in handle.inputs],
        "logprobs": logprobs.detach().flatten().tolist(), "w": torch.tensor(W[w]).flatten().tolist(), "n": N,
        "graph": encode_graph(handle).model_dump(), "loss": loss.item(), "grads": logprobs.grad.flatten().tolist(),
        "metrics": {key: float(value.detach()) for key, value in metrics.items()}})
    return fn


def value(name, fn, rank=1, w=1, smooth=True):
    """fn gives a tensor of any rank; the loss depends on each element by itself and on its place."""

    def loss(logprobs, w, n):
        y = fn(logprobs, w, n)
        return (y * y + 0.5 * y).sum() + logprobs.sum(), {"custom/y:mean": y.sum()}

    loss.__name__ = name
    case(loss, name, rank, w, smooth)


# one operand
value("neg", lambda x, w, n: -x)
value("torch.neg", lambda x, w, n: torch.neg(x))
value("exp", lambda x, w, n: torch.exp(x))
value("log", lambda x, w, n: (-x).log())
value("log1p", lambda x, w, n: torch.log1p(-x))
value("expm1", lambda x, w, n: x.expm1())
value("sqrt", lambda x, w, n: torch.sqrt(-x))
value("rsqrt", lambda x, w, n: torch.rsqrt(-x))
value("reciprocal", lambda x, w, n: torch.reciprocal(x))
value("abs", lambda x, w, n: torch.abs(x + 1))
value("operator.abs", lambda x, w, n: abs(x + 1))
value("abs at 0", lambda x, w, n: (x + 0.5).abs(), smooth=False)
value("sign", lambda x, w, n: torch.sign(x + 1) * x)
value("square", lambda x, w, n: x.square())
value("sigmoid", lambda x, w, n: torch.sigmoid(x + 1))
value("F.sigmoid", lambda x, w, n: F.sigmoid(x - 30))
value("logsigmoid", lambda x, w, n: F.logsigmoid(x + 1))
value("logsigmoid far", lambda x, w, n: F.logsigmoid(x - 50))
value("softplus", lambda x, w, n: F.softplus(x + 1, beta=1, threshold=20))
value("tanh", lambda x, w, n: torch.tanh(x))
value("relu", lambda x, w, n: F.relu(x + 1))
value("relu at 0", lambda x, w, n: torch.relu(x + 0.5), smooth=False)
value("detach", lambda x, w, n: x.detach() * x, smooth=False)
value("clone", lambda x, w, n: x.clone().contiguous() * x)
value("pos", lambda x, w, n: +x)
# two
value("add", lambda x, w, n: x + w)
value("torch.add alpha", lambda x, w, n: torch.add(x, w, alpha=2) + x.sub(w * x, alpha=0.5))
value("sub", lambda x, w, n: 2 - x)
value("mul", lambda x, w, n: x * w * x)
value("div", lambda x, w, n: w / x + x / 3)
value("torch.div", lambda x, w, n: torch.div(x, w + 3).true_divide(x - 1))
value("pow", lambda x, w, n: x ** 3 + (-x) ** w)
value("torch.pow", lambda x, w, n: torch.pow(-x, -x) + x.pow(2))
value("2 ** x", lambda x, w, n: 2 ** x)
value("pow 0", lambda x, w, n: (x + 0.5) ** 0 + (x + 0.5) ** 2)
value("minimum", lambda x, w, n: torch.minimum(x, w * x))
value("maximum", lambda x, w, n: torch.maximum(x, w - 0.9))
value("min tie", lambda x, w, n: torch.min(x * x, x * x * 1.0), smooth=False)
value("max tie", lambda x, w, n: torch.max(x, x.detach()), smooth=False)
value("logaddexp", lambda x, w, n: torch.logaddexp(x, w))
# conditions
value("comparisons", lambda x, w, n: x * (x > -1) + 2 * x * (x >= w) + 3 * x * (x < -0.3) + 4 * x * (x <= n))
value("eq ne", lambda x, w, n: x * (n == 1) + 2 * x * (n != 1) + 3 * x * n.eq(2))
value("logic", lambda x, w, n: x * ((w > 0) & (n > 0)) + 2 * x * ((w > 0) | (n > 1)) + 3 * x * ~(w > 0))
value("xor", lambda x, w, n: x * ((w > 0) ^ (n > 0)))
value("logical", lambda x, w, n: x * torch.logical_and(w, n) + 2 * x * torch.logical_or(w, n) + 3 * x * n.logical_not()
      + 4 * x * torch.logical_xor(w, n))
value("where", lambda x, w, n: torch.where(w > 0, x.exp(), x * x))
value("where number", lambda x, w, n: torch.where(w > 0, x, 0.0) + x.where(n > 1, w))
value("masked_fill", lambda x, w, n: x.masked_fill(w > 0, -1.5) * x)
value("clamp", lambda x, w, n: torch.clamp(x, -1.5, -0.3) * x)
value("clamp max", lambda x, w, n: x.clamp(max=-0.4) + x.clip(min=-1.1))
value("clamp at bounds", lambda x, w, n: torch.clamp(x, min=-1.25, max=-0.5), smooth=False)
value("clamp tensors", lambda x, w, n: torch.clamp(x, w * x, x * x) + torch.clamp(w, max=x), smooth=False)
value("clamp_min", lambda x, w, n: x.clamp_min(-1) + torch.clamp_max(x, -0.9))
# over axes
value("sum", lambda x, w, n: x.exp().sum() * x)
value("sum dim", lambda x, w, n: torch.sum(x * x, dim=0) + x.exp().sum(0), rank=2)
value("sum last", lambda x, w, n: (x * x).sum(-1) * w, rank=2)
value("sum keepdim", lambda x, w, n: x / x.sum(dim=1, keepdim=True), rank=2)
value("sum both", lambda x, w, n: x * x.sum(dim=(0, 1)), rank=2)
value("sum axis", lambda x, w, n: x * x.sum(axis=0, keepdims=True), rank=2)
value("sum of booleans", lambda x, w, n: x * (w > 0).sum() / n.sum())
value("mean", lambda x, w, n: x - x.mean())
value("mean dim", lambda x, w, n: x - x.mean(0), rank=2)
value("mean keepdim", lambda x, w, n: x - torch.mean(x, 1, keepdim=True), rank=2)
value("logsumexp", lambda x, w, n: x - torch.logsumexp(x, dim=0))
value("logsumexp 2", lambda x, w, n: x - x.logsumexp(-1, keepdim=True), rank=2)
value("logsumexp large", lambda x, w, n: torch.logsumexp(x * 400, 0) / 400)
value("softmax", lambda x, w, n: F.softmax(x, dim=-1), rank=2)
value("log_softmax", lambda x, w, n: F.log_softmax(x, dim=0) + torch.log_softmax(x, 1), rank=2)
value("torch.softmax", lambda x, w, n: x.softmax(0))
value("amax", lambda x, w, n: x - x.amax(dim=1, keepdim=True) + torch.amin(x, 0), rank=2)
value("max", lambda x, w, n: x * x.max() + x * torch.min(x))
value("max ties", lambda x, w, n: (x[:3] + 1.25).square().max(), smooth=False)
value("any all", lambda x, w, n: x * (w > 0).any() + 2 * x * torch.all(n >= 0) + 3 * x * torch.any(n > 7))
value("cumsum", lambda x, w, n: torch.cumsum(x, 0) * w)
value("cumsum 2", lambda x, w, n: x.cumsum(dim=0) * x.cumsum(-1), rank=2)
value("dot", lambda x, w, n: torch.dot(x, w) + x.dot(x))
value("mse_loss", lambda x, w, n: F.mse_loss(x, w) + F.mse_loss(x, w, reduction="sum")
      + F.mse_loss(x, w, reduction="none"))
# dtypes
value("casts", lambda x, w, n: x * n.double() + x * (w > 0).to(x.dtype) + x * n.to(torch.float64) + x * n.to(x))
value("to integers", lambda x, w, n: x * (2.75 * x).long() + x * (w * 1.75).to(torch.int64) + x * n.bool())
value("type_as", lambda x, w, n: x * n.type_as(x))
value("to device", lambda x, w, n: x.to("cpu") * w.to(x.device))
value("like", lambda x, w, n: x * torch.full_like(x, 1.5) + x * torch.ones_like(n) + torch.zeros_like(w) * x)
# broadcasting and shapes
value("row and column", lambda x, w, n: x[:, None] * x[None, :] + w)
value("scalar", lambda x, w, n: x * w, w=0)
value("matrix and row", lambda x, w, n: x * x.sum(0) * w, rank=2, w=2)
value("column", lambda x, w, n: x * w.unsqueeze(1) + x * w.unsqueeze(-1), rank=2)
value("unsqueeze", lambda x, w, n: x.unsqueeze(0) * x.sum().unsqueeze(0))
value("squeeze", lambda x, w, n: x.sum(1, keepdim=True).squeeze(1) + x[:, 0:1].squeeze(-1), rank=2)
value("squeeze row", lambda x, w, n: x[1:2].squeeze(0) * x[0:1, :].squeeze(0), rank=2)
value("reshape", lambda x, w, n: x.reshape(-1) * x.view(12) * torch.reshape(x, (-1,)), rank=2)
value("reshape 2", lambda x, w, n: x.reshape(2, -1) * x.view(-1, 6).reshape(2, 6), rank=2)
value("flatten", lambda x, w, n: x.flatten(), rank=2)
value("sizes", lambda x, w, n: x / x.shape[0] + x * x.size(1) + x * x.numel() + x * x.size()[-1] + x * x.ndim * x.dim(),
      rank=2)
value("view by size", lambda x, w, n: x.reshape(x.shape[1], x.shape[0]) ** 2, rank=2)
value("slice", lambda x, w, n: x[1:] * x[:-1])
value("slice step", lambda x, w, n: x[::2] * x[1::2] + x[-2:])
value("slice beyond", lambda x, w, n: x[-9:9] + x[7:].sum())
value("position", lambda x, w, n: x[0] * x[-1] + x[2])
value("columns", lambda x, w, n: x[:, 0] * x[..., -1] + x[:, 1:3].sum(1), rank=2)
value("rows", lambda x, w, n: x[0] * x[-1, :] + x[1, 2] * x[2], rank=2)
value("new axes", lambda x, w, n: x[None, :, 0] + x[:, None, 1] * x[..., 2][None], rank=2)
value("mask", lambda x, w, n: x[w > 0] * 2)
value("mask of a matrix", lambda x, w, n: x[x < -1.1], rank=2)
value("mask of rows", lambda x, w, n: x[w > 0] * x[n > 1], rank=2)
value("masked_select", lambda x, w, n: torch.masked_select(x, w > 0))


# whole losses
@case
def neg_ll(logprobs, w, n):
    loss = -(logprobs * w).sum()
    return loss, {"custom/neg_ll:sum": loss, "custom/n:sum": (w > 0).sum()}


@case
def grpo_with_kl(logprobs, w, n):
    ratio = torch.exp(logprobs + 1.1 - 0.1 * w)
    clipped = torch.clamp(ratio, 1 - 0.2, 1 + 0.28)
    policy = -torch.min(ratio * w, clipped * w)
    off = -1 - logprobs
    kl = torch.exp(off) - off - 1
    mask = (n > 0).to(logprobs.dtype)
    count = mask.sum().clamp(min=1)
    loss = ((policy + 0.04 * kl) * mask).sum() / count
    return loss, {"custom/kl:mean": (kl * mask).sum() / count,
                  "custom/clip_frac:mean": ((ratio != clipped).to(logprobs.dtype) * mask).sum() / count}


@case
def one_side_of_dpo(logprobs, w, n):
    margin = 0.1 * (logprobs - w).sum()
    return -F.logsigmoid(margin), {"custom/margin:mean": margin, "custom/accuracy:mean": (margin > 0).float()}


def entropy_bonus(logprobs, w, n):
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return -(entropy * w).sum() - 0.01 * entropy.mean(), {"custom/entropy:mean": entropy.mean().detach()}


case(entropy_bonus, rank=2)
case(neg_ll, "neg_ll of a distribution", rank=2, w=2)

out = pathlib.Path(__file__).with_name("cases.jsonl")
out.write_text("".join(json.dumps(c, separators=(",", ":")) + "\n" for c in cases))
print(len(cases), "cases,", out.stat().st_size, "bytes")
