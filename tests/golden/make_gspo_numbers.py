#!/usr/bin/env python3
"""Writes tests/support/engine/gspo_numbers.h: GSPO's loss and gradient of three sequences, in float64.

The surrogate of arXiv 2507.18071, section 4.3 (an advantage for each token): with s = exp(mean(lp - q)) over the
tokens whose advantage is not zero, s_t = sg[s] exp(lp_t - sg[lp_t]); the loss of a token is
-min(s_t A_t, clip(s_t, low, high) A_t). Gradients are central differences of that, the sg parts held fixed.
"""
import math, random

low, high, h = 0.8, 1.2, 1e-6
rng = random.Random(11)


def loss_of(s, lp, fixed, a):
    ratio = s * math.exp(lp - fixed)
    return -min(ratio * a, min(max(ratio, low), high) * a)


def sequence(n, shift):
    q = [round(rng.uniform(-4, -0.2), 3) for _ in range(n)]
    lp = [round(x + shift + rng.uniform(-0.3, 0.3), 3) for x in q]
    a = [0.0 if i % 4 == 1 else round(rng.uniform(-2, 2), 3) for i in range(n)]
    used = [i for i in range(n) if a[i]]
    s = math.exp(sum(lp[i] - q[i] for i in used) / len(used))
    rows = []
    for i in range(n):
        if not a[i]:
            rows.append((lp[i], q[i], a[i], 0.0, 0.0))
            continue
        g = (loss_of(s, lp[i] + h, lp[i], a[i]) - loss_of(s, lp[i] - h, lp[i], a[i])) / (2 * h)
        rows.append((lp[i], q[i], a[i], loss_of(s, lp[i], lp[i], a[i]), g))
    return rows


print("/* gspo_numbers.h - made by tests/golden/make_gspo_numbers.py: lp, q, advantage, loss, gradient. */")
print("static const struct {\n    int sequence;\n    float lp, q, a;\n    double loss, g;\n} gspo_numbers[] = {")
for k, (n, shift) in enumerate([(5, 0.05), (7, 0.6), (6, -0.5)]):
    for lp, q, a, loss, g in sequence(n, shift):
        print(f"    {{ {k}, {lp:.3f}f, {q:.3f}f, {a:.3f}f, {loss:.9f}, {g:.7f} }},")
print("};")
