"""Patterns whose shapes or scalars change from call to call.

DYNAMIC is name -> () -> (fn, [args, args, ...]).

One compiled function must serve all tuples without compiling machine code again.
"""

import torch
import torch.nn.functional as F  # noqa: N812

DYNAMIC = {}


def pattern(build):
    return DYNAMIC.setdefault(build.__name__, build)


r = torch.randn


@pattern
def lengths_of_a_recurrent_loop_105279():
    def f(x, w, h):
        for t in range(3):
            h = torch.tanh(x[t] @ w + h)
        return h

    return f, [(r(3, n, 16), r(16, 16), r(n, 16)) for n in (1, 2, 7, 64, 129)]


@pattern
def rms_norm_of_any_batch_144068():
    return (
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w,
        [(r(b, s, 96), r(96)) for b, s in ((1, 1), (1, 17), (4, 1), (3, 250), (2, 1000))],
    )


@pattern
def square_mask_of_length_123810():
    return (
        lambda x: torch.full((x.shape[0], x.shape[0]), float("-inf")).triu(1) + x @ x.t(),
        [(r(n, 8),) for n in (1, 2, 5, 33, 200)],
    )


@pattern
def float_scalars_that_change_149405():
    return (lambda x, a: x * a + 1.0, [(r(10), a) for a in (1.5, 2.0, 1.0, 0.0, -3.25)])


@pattern
def scheduler_betas_133898():
    def f(p, g, m, beta, lr):
        m = m.lerp(g, 1 - beta)
        return p - lr * m.sign(), m

    return f, [(r(50), r(50), r(50), 0.9 - 0.01 * i, 1e-3 * (i + 1)) for i in range(6)]


@pattern
def size_one_is_a_size_135005():
    return lambda x: F.softmax(x, -1).sum(0), [(r(n, 40),) for n in (1, 2, 3, 1, 17)]


@pattern
def inner_size_changes_102670():
    return (lambda x: F.layer_norm(x, x.shape[-1:]), [(r(12, d),) for d in (1, 7, 64, 1000, 4097)])


@pattern
def boolean_mask_114220():
    return lambda x: x[x > 0.5] * 2, [(r(n),) for n in (1, 10, 1000)]


@pattern
def masked_select_165421():
    return lambda x, m: torch.masked_select(x, m).sum(), [
        (r(n, 6), torch.rand(n, 6) > 0.3) for n in (1, 4, 90)
    ]


@pattern
def nonzero_write_back_194166():
    def f(x, m):
        i = m.nonzero().squeeze(1)
        y = x.clone()
        y[i] = (x[i] - x[i].mean(0)) / (x[i].std(0) + 1e-5)
        return y

    return f, [(r(n, 8), torch.arange(n) % 3 != 0) for n in (5, 50, 333)]


@pattern
def branch_on_a_device_value_168911():
    def f(x, y):
        return torch.cond(
            x.sum() > 0, lambda a, b: torch.where(a > 0, a + b, a), lambda a, b: a - b, (x, y)
        )

    return f, [(s * torch.rand(n, 33), r(n, 33)) for n, s in ((1, 1), (4, -1), (70, 1), (70, -1))]


@pattern
def decode_context_grows():
    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)

    return f, [(r(2, 8, 1, 16), r(2, 2, n, 16), r(2, 2, n, 16)) for n in (1, 2, 31, 32, 33, 500)]


@pattern
def experts_with_uneven_tokens():
    def f(x, gate, w1, w2):
        out = torch.zeros_like(x)
        top = (x @ gate).argmax(-1)
        for e in range(w1.shape[0]):
            i = (top == e).nonzero().squeeze(1)
            out.index_copy_(0, i, F.silu(x[i] @ w1[e]) @ w2[e])
        return out

    return f, [(r(n, 16), r(16, 4), r(4, 16, 32), r(4, 32, 16)) for n in (1, 8, 100)]
