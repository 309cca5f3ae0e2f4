"""Movement-heavy patterns: PATTERNS is name -> () -> (fn, [args, ...])."""

import torch
import torch.nn.functional as F  # noqa: N812

PATTERNS, ALIASING = {}, {}


def pattern(table):
    return lambda build: table.setdefault(build.__name__, build)


r = torch.randn


@pattern(PATTERNS)
def cat_of_matmuls_pytorch_102804():
    return lambda a, b, w: torch.cat([a @ w, (b @ w).cos()], 1), [(r(8, 16), r(8, 16), r(16, 24))]


@pattern(PATTERNS)
def stack_of_unit_dims_pytorch_102805():
    return lambda a, b: torch.stack([a[None], b[None] * 2], -1).relu(), [(r(4, 32), r(4, 32))]


@pattern(PATTERNS)
def rows_padded_by_cat_pytorch_125075():
    def f(x, pad):
        y = torch.cat([x, pad], 0)
        return y * 2 + 1, x.to(torch.bfloat16)

    return f, [(r(1000, 64), torch.zeros(24, 64))]


@pattern(PATTERNS)
def embedding_norm_rope_transpose_pytorch_188635():
    def f(ids, table, cos, sin):
        x = F.rms_norm(F.embedding(ids, table), (64,))
        x = x.view(*ids.shape, 4, 16).transpose(1, 2).contiguous()
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    return f, [(torch.randint(0, 100, (2, 9)), r(100, 64), r(9, 8), r(9, 8))]


@pattern(PATTERNS)
def matmul_then_index_add_pytorch_143130():
    return (
        lambda acc, i, x, w: acc.clone().index_add_(0, i, x @ w),
        [(r(32, 24), torch.randint(0, 32, (50,)), r(50, 16), r(16, 24))],
    )


@pattern(PATTERNS)
def gathers_bmm_scatter_pytorch_142315():
    def f(x, src, dst, w):
        m = torch.bmm(x[src].unsqueeze(1), w[dst % w.shape[0]]).squeeze(1)
        return torch.zeros_like(x).index_add(0, dst, m)

    return f, [(r(40, 16), torch.randint(0, 40, (70,)), torch.randint(0, 40, (70,)), r(5, 16, 16))]


@pattern(PATTERNS)
def narrow_slice_scatter_pytorch_195609():
    def f(buf, x):
        y = torch.slice_scatter(buf, x * 2, 1, 3, 5)
        return y + 1

    return f, [(r(64, 512), r(64, 2))]


@pattern(PATTERNS)
def same_tensor_as_key_and_value_pytorch_175833():
    return (
        lambda q, kv: F.scaled_dot_product_attention(q, kv.transpose(1, 2), kv.transpose(1, 2)),
        [(r(2, 4, 7, 16), r(2, 9, 4, 16))],
    )


@pattern(PATTERNS)
def upsample_conv_groupnorm_pytorch_189488():
    def f(x, w, g, b):
        return F.silu(
            F.group_norm(F.conv2d(F.interpolate(x, scale_factor=2), w, padding=1), 4, g, b)
        )

    return f, [(r(2, 8, 9, 7), r(16, 8, 3, 3), r(16), r(16))]


@pattern(PATTERNS)
def channel_shuffle_before_conv_pytorch_197109():
    return (
        lambda x, w: F.conv2d(F.channel_shuffle(x, 2), w),
        [(r(2, 58, 7, 7).to(memory_format=torch.channels_last), r(20, 58, 1, 1))],
    )


@pattern(PATTERNS)
def shufflenet_unit_torchdynamo_1915():
    def f(x, w):
        a, b = x.chunk(2, 1)
        b = F.relu(F.conv2d(b, w))
        y = torch.cat([a, b], 1)
        n, c, h, v = y.shape
        return y.view(n, 2, c // 2, h, v).transpose(1, 2).contiguous().view(n, c, h, v)

    return f, [(r(3, 58, 14, 14), r(29, 29, 1, 1))]


@pattern(PATTERNS)
def split_part_reused_in_concat_tensorrt_3254():
    def f(x, w1, w2, w3):
        y = list(F.silu(F.conv2d(x, w1)).chunk(2, 1))
        y.append(y[-1] + F.silu(F.conv2d(F.silu(F.conv2d(y[-1], w2, padding=1)), w2, padding=1)))
        return F.silu(F.conv2d(torch.cat(y, 1), w3))

    return f, [(r(2, 16, 10, 10), r(32, 16, 1, 1), r(16, 16, 3, 3), r(24, 48, 1, 1))]


@pattern(PATTERNS)
def repeat_kv_with_mask_transformers_48633():
    def f(q, k, v, mask):
        k = k[:, :, None].expand(-1, -1, 4, -1, -1).reshape(2, 8, 9, 16)
        v = v[:, :, None].expand(-1, -1, 4, -1, -1).reshape(2, 8, 9, 16)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return o.transpose(1, 2).reshape(2, 3, 128)

    return f, [
        (
            r(2, 8, 3, 16),
            r(2, 2, 9, 16),
            r(2, 2, 9, 16),
            torch.ones(2, 1, 3, 9, dtype=torch.bool).tril(6),
        )
    ]


@pattern(PATTERNS)
def kv_cache_write_then_attend_tensorrt_vllm():
    def f(qkv, kc, vc, pos):
        q, k, v = qkv.split([64, 16, 16], -1)
        kc.index_copy_(2, pos, k.view(2, 1, 1, 16))
        vc.index_copy_(2, pos, v.view(2, 1, 1, 16))
        kk, vv = kc[:, :, :12].expand(-1, 4, -1, -1), vc[:, :, :12].expand(-1, 4, -1, -1)
        return (
            F.scaled_dot_product_attention(q.view(2, 1, 4, 16).transpose(1, 2), kk, vv)
            .transpose(1, 2)
            .reshape(2, 1, 64)
        )

    return f, [(r(2, 1, 96), r(2, 1, 32, 16), r(2, 1, 32, 16), torch.tensor([11]))]


@pattern(PATTERNS)
def packed_qk_before_rotary_vllm_51537():
    def f(qkv, cos, sin):
        q, k, v = qkv.unflatten(-1, (3, 4, 16)).unbind(-3)

        def rot(t):
            return torch.cat(
                [t[..., :8] * cos - t[..., 8:] * sin, t[..., 8:] * cos + t[..., :8] * sin], -1
            )

        return rot(q).contiguous(), rot(k).contiguous(), v

    return f, [(r(5, 192), r(5, 1, 8), r(5, 1, 8))]


@pattern(PATTERNS)
def swin_window_partition_tensorrt_4294():
    def f(x):
        x = torch.roll(x, (-2, -2), (1, 2))
        n, h, w, c = x.shape
        return (
            x.view(n, h // 4, 4, w // 4, 4, c)
            .permute(0, 1, 3, 2, 4, 5)
            .contiguous()
            .view(-1, 16, c)
        )

    return f, [(r(2, 8, 12, 24),)]


@pattern(PATTERNS)
def pixel_shuffle_pad_flip():
    return (
        lambda x: (
            F.pad(F.pixel_shuffle(x, 2), (1, 2, 0, 1), mode="reflect").flip(-1)
            + F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2).mean()
        ),
        [(r(2, 12, 5, 6),)],
    )


@pattern(ALIASING)
def update_through_one_view_read_through_another():
    def f(buf, x):
        a, b = buf[:4], buf[2:6]
        a.copy_(x)
        return b * 2, buf.sum()

    return f, [(r(8, 5), r(4, 5))]


@pattern(ALIASING)
def read_old_value_after_scatter():
    def f(cache, i, x):
        old = cache[:, :3].clone()
        new = cache.index_put((torch.arange(4), i), x)
        return old + new[:, :3], cache

    return f, [(r(4, 6, 5), torch.tensor([0, 2, 1, 2]), r(4, 5))]


@pattern(ALIASING)
def one_buffer_in_two_concats():
    def f(a, b, w):
        y = F.relu(a @ w)
        return torch.cat([y, b], 1), torch.cat([b, y], 1), y.t()

    return f, [(r(6, 8), r(6, 3), r(8, 4))]


@pattern(ALIASING)
def same_argument_twice_and_updated():
    def f(x, y):
        x.mul_(2)
        return torch.cat([x, y], 0)

    def args():
        t = r(3, 4)
        return (t, t)

    return f, [args()]
