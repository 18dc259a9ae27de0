/* cuda_conv.cu - the short convolution of the rules with a state, and its gradient.
 *
 * A thread takes a few neighbouring channels of a tile of a run's rows and moves a window of the last rows over them; it asks for AHEAD
 * rows before it needs the first of them. A row's sum is
 * the same chain of fused multiply-adds wherever the window came from: rows of the launch, the sequence's slot, or nothing.
 */
#include "cuda/cuda_rows.cuh"
#include "cuda/cuda_rules.h"

enum { THREADS = 128, TILE = 32, AHEAD = 8, AHEAD_BACK = 4 }; /* a tile has more rows than a window, so only the first one of a run reads the slot */

/* V neighbouring columns, in a word of 8 bytes. */
template <int V> struct word_of;
template <> struct word_of<4> {
    typedef uint2 type;
};

template <int V> DEVICE typename word_of<V>::type word_at(const bf16 *from)
{
    return *(const typename word_of<V>::type *)from;
}

template <int V> DEVICE void spread(const typename word_of<V>::type &word, float x[V])
{
    const uint32_t *w = &word.x;
#pragma unroll
    for (int i = 0; i < V / 2; i++) {
        float2 two = unpack(w[i]);
        x[2 * i] = two.x;
        x[2 * i + 1] = two.y;
    }
}

template <int V> DEVICE void load(const bf16 *from, float x[V])
{
    spread<V>(word_at<V>(from), x);
}

template <int V> DEVICE void store(bf16 *to, const float x[V])
{
    typename word_of<V>::type word;
    uint32_t *w = &word.x;
#pragma unroll
    for (int i = 0; i < V / 2; i++)
        w[i] = pack(x[2 * i], x[2 * i + 1]);
    *(typename word_of<V>::type *)to = word;
}

static __host__ __device__ int rounded(int channels)
{
    return (channels + 7) / 8 * 8;
}

template <int V> struct lane { /* of a thread: its columns */
    int column, columns, all; /* in c; those of c; channels of all parts */
    int part, inside, channel, channels; /* the column and the first channel in the part, channels of it */
    const bf16 *m;            /* of the run's first row */
    int64_t ld;
    tcu_run run;
};

template <int V> DEVICE lane<V> lane_of(const tcu_conv &p)
{
    lane<V> l = {};
    l.column = (blockIdx.x * THREADS + threadIdx.x) * V;
    l.run = p.runs[blockIdx.y];
#pragma unroll
    for (int i = 0; i < TCU_CONV_PARTS; i++) {
        if (i >= p.n_parts)
            break;
        if (l.column >= l.columns) {
            l.part = i;
            l.inside = l.column - l.columns;
            l.channel = l.all + l.inside;
            l.channels = p.part[i].channels;
            l.ld = p.part[i].ld;
            l.m = p.part[i].m + l.run.row * l.ld + l.inside;
        }
        l.columns += rounded(p.part[i].channels);
        l.all += p.part[i].channels;
    }
    return l;
}

template <int K, int V> struct taps {
    float w[K][V], bias[V];
};

/* With fewer than K taps the first ones are zero, and so is what they read; so are those of columns beyond the channels. */
template <int K, int V> DEVICE void load_taps(const tcu_conv &p, const lane<V> &l, taps<K, V> &t)
{
    if (V == 4 && l.inside + V <= l.channels && (l.all | l.channel) % 4 == 0) {
#pragma unroll
        for (int j = 0; j < K; j++) {
            int at = j - (K - p.kernel);
            float4 w = at < 0 ? make_float4(0, 0, 0, 0) : *(const float4 *)(p.weights + (int64_t)at * l.all + l.channel);
            t.w[j][0] = w.x, t.w[j][1] = w.y, t.w[j][2] = w.z, t.w[j][3] = w.w;
        }
#pragma unroll
        for (int i = 0; i < V; i++)
            t.bias[i] = p.bias ? p.bias[l.channel + i] : 0;
        return;
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
        bool there = l.inside + i < l.channels;
#pragma unroll
        for (int j = 0; j < K; j++) {
            int at = j - (K - p.kernel);
            t.w[j][i] = there && at >= 0 ? p.weights[(int64_t)at * l.all + l.channel + i] : 0;
        }
        t.bias[i] = there && p.bias ? p.bias[l.channel + i] : 0;
    }
}

/* Row `at` of the run: one of the launch's, one of the slot's (at < 0), or zeros. */
template <int V> DEVICE void load_row(const tcu_conv &p, const lane<V> &l, int at, float x[V])
{
    int back = p.kernel - 1 + at; /* the row's place in the slot */
#pragma unroll
    for (int i = 0; i < V; i++)
        x[i] = 0;
    if (at >= 0)
        load<V>(l.m + at * l.ld, x);
    else if (p.slots && back >= 0 && l.run.position + at >= 0)
        load<V>(p.slots + l.run.slot * p.stride + (int64_t)back * l.columns + l.column, x);
}

/* The next row enters the window. */
template <int K, int V> DEVICE void shift(float window[K][V], const float x[V])
{
#pragma unroll
    for (int i = 0; i < V; i++) {
#pragma unroll
        for (int j = 0; j + 1 < K; j++)
            window[j][i] = window[j + 1][i];
        window[K - 1][i] = x[i];
    }
}

template <int K, int V> DEVICE void sum_taps(const taps<K, V> &t, const float window[K][V], float out[V])
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        out[i] = t.bias[i];
#pragma unroll
        for (int j = 0; j < K; j++)
            out[i] = fmaf(t.w[j][i], window[j][i], out[i]);
    }
}

/* The rows before row `first` of the run, the newest last; window[0] is overwritten by the first shift. */
template <int K, int V> DEVICE void open_window(const tcu_conv &p, const lane<V> &l, int first, float window[K][V])
{
#pragma unroll
    for (int j = 0; j < K; j++)
        if (j >= K - p.kernel + 1)
            load_row<V>(p, l, first - K + j, window[j]);
        else
#pragma unroll
            for (int i = 0; i < V; i++)
                window[j][i] = 0;
}

/* The last rows of the run, or what it found, become those of the slot: by the threads that read the slot. */
template <int K, int V> DEVICE void keep_rows(const tcu_conv &p, const lane<V> &l, const float before[K][V])
{
    bf16 *to = p.slots + l.run.slot * p.stride + l.column;
#pragma unroll
    for (int j = 1; j < K; j++) {
        int place = j - (K - p.kernel + 1), at = l.run.n - K + j;
        float x[V];
        if (place < 0)
            continue;
        if (at >= 0)
            load<V>(l.m + at * l.ld, x);
        else
#pragma unroll
            for (int i = 0; i < V; i++) {
                x[i] = 0;
#pragma unroll
                for (int k = 0; k < K; k++) /* which is known at run time only */
                    x[i] = k == K + at ? before[k][i] : x[i];
            }
        store<V>(to + (int64_t)place * l.columns, x);
    }
}

/* c of rows [first, end). FULL: a whole tile, whose loop has no conditions, so that the window stays where it is in registers. */
template <int K, int V, bool FULL>
DEVICE void walk_rows(const lane<V> &l, const taps<K, V> &t, float window[K][V], int first, int end, bf16 *c, int64_t ldc)
{
    float x[V];
    static_assert(TILE % AHEAD == 0 && AHEAD % K == 0, "a whole tile has no rest");
#pragma unroll 1
    for (int from = first; from < end; from += AHEAD) {
        typename word_of<V>::type rows[AHEAD];
#pragma unroll
        for (int r = 0; r < AHEAD; r++)
            if (FULL || from + r < end)
                rows[r] = word_at<V>(l.m + (from + r) * l.ld);
#pragma unroll
        for (int r = 0; r < AHEAD; r++) {
            if (!FULL && from + r >= end)
                break;
            spread<V>(rows[r], x);
            shift<K, V>(window, x);
            sum_taps<K, V>(t, window, x);
#pragma unroll
            for (int i = 0; i < V; i++)
                x[i] *= sigmoid(x[i]);
            store<V>(c + (from + r) * ldc, x);
        }
    }
}

template <int K, int V> __global__ void __launch_bounds__(THREADS) conv_forward(tcu_conv p, bf16 *c, int64_t ldc)
{
    lane<V> l = lane_of<V>(p);
    int first = blockIdx.z * TILE, end = min(first + TILE, l.run.n);
    if (l.column >= l.columns || first >= end)
        return;
    taps<K, V> t;
    float window[K][V];
    load_taps<K, V>(p, l, t);
    open_window<K, V>(p, l, first, window);
    if (p.slots && first == 0)
        keep_rows<K, V>(p, l, window);
    if (end - first == TILE)
        walk_rows<K, V, true>(l, t, window, first, end, c + l.run.row * ldc + l.column, ldc);
    else
        walk_rows<K, V, false>(l, t, window, first, end, c + l.run.row * ldc + l.column, ldc);
}

struct grads_of {
    bf16 *part[TCU_CONV_PARTS];
};

/* d: the gradient after silu, becomes that before it, of x. Of columns beyond the channels: zero, unless ALL are there. */
template <int V, bool ALL> DEVICE void each_gradient(const lane<V> &l, const float x[V], float d[V])
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        float s = sigmoid(x[i]);
        d[i] = ALL || l.inside + i < l.channels ? d[i] * (s * (1 + x[i] * (1 - s))) : 0;
    }
}

template <int K, int V> DEVICE void sum_back(const taps<K, V> &t, const float grads[K][V], float out[V])
{
#pragma unroll
    for (int i = 0; i < V; i++) { /* grads[0] is of the row itself */
        out[i] = 0;
#pragma unroll
        for (int j = 0; j < K; j++)
            out[i] = fmaf(t.w[K - 1 - j][i], grads[j][i], out[i]);
    }
}

/* A row and the gradient after it enter their windows. */
template <int K, int V>
DEVICE void enter(const lane<V> &l, const taps<K, V> &t, const typename word_of<V>::type &m, const typename word_of<V>::type &dc,
                  float window[K][V], float grads[K][V])
{
    float x[V], d[V];
    spread<V>(m, x);
    spread<V>(dc, d);
    shift<K, V>(window, x);
    sum_taps<K, V>(t, window, x);
    each_gradient<V, true>(l, x, d);
    shift<K, V>(grads, d);
}

/* A whole tile, and the rows after it that read it, without conditions. */
template <int K, int V>
DEVICE void walk_back(const lane<V> &l, const taps<K, V> &t, float window[K][V], float grads[K][V], int first, const bf16 *dc, int64_t ldc,
                      bf16 *to)
{
    const bf16 *m = l.m + first * l.ld;
    dc += first * ldc;
    to += first * l.ld;
    const int EACH = K > AHEAD_BACK ? K : AHEAD_BACK;
    static_assert(TILE % EACH == 0, "no rest");
#pragma unroll
    for (int r = 0; r < K - 1; r++, m += l.ld, dc += ldc)
        enter<K, V>(l, t, word_at<V>(m), word_at<V>(dc), window, grads);
#pragma unroll 1
    for (int from = 0; from < TILE; from += EACH) {
        typename word_of<V>::type rows[EACH], above[EACH];
#pragma unroll
        for (int r = 0; r < EACH; r++, m += l.ld, dc += ldc) {
            rows[r] = word_at<V>(m);
            above[r] = word_at<V>(dc);
        }
#pragma unroll
        for (int r = 0; r < EACH; r++, to += l.ld) {
            float x[V];
            enter<K, V>(l, t, rows[r], above[r], window, grads);
            sum_back<K, V>(t, grads, x);
            store<V>(to, x);
        }
    }
}

/* Row t needs the gradients before silu of rows t .. t + K - 1: each is made from its own window. */
template <int K, int V>
__global__ void __launch_bounds__(THREADS) conv_back(tcu_conv p, const bf16 *dc, int64_t ldc, grads_of dm)
{
    lane<V> l = lane_of<V>(p);
    int first = blockIdx.z * TILE, end = min(first + TILE, l.run.n);
    if (l.column >= l.columns || first >= end)
        return;
    taps<K, V> t;
    float window[K][V], grads[K][V], x[V], d[V];
    bf16 *to = (l.part == 0 ? dm.part[0] : l.part == 1 ? dm.part[1] : dm.part[2]) + l.inside;
    load_taps<K, V>(p, l, t);
    open_window<K, V>(p, l, first, window);
#pragma unroll
    for (int j = 0; j < K; j++)
#pragma unroll
        for (int i = 0; i < V; i++)
            grads[j][i] = 0;
    if (end - first == TILE && end + K - 1 <= l.run.n && l.inside + V <= l.channels) {
        walk_back<K, V>(l, t, window, grads, first, dc + l.run.row * ldc + l.column, ldc, to + l.run.row * l.ld);
        return;
    }
    for (int from = first; from < end + K - 1; from += AHEAD_BACK) {
        typename word_of<V>::type rows[AHEAD_BACK], above[AHEAD_BACK];
#pragma unroll
        for (int r = 0; r < AHEAD_BACK; r++)
            if (from + r < l.run.n) {
                rows[r] = word_at<V>(l.m + (from + r) * l.ld);
                above[r] = word_at<V>(dc + (l.run.row + from + r) * ldc + l.column);
            }
#pragma unroll
        for (int r = 0; r < AHEAD_BACK; r++) {
            int at = from + r;
            if (at >= end + K - 1)
                break;
#pragma unroll
            for (int i = 0; i < V; i++)
                d[i] = 0;
            if (at < l.run.n) {
                spread<V>(rows[r], x);
                spread<V>(above[r], d);
                shift<K, V>(window, x);
                sum_taps<K, V>(t, window, x);
                each_gradient<V, false>(l, x, d);
            }
            shift<K, V>(grads, d);
            if (at < first + K - 1)
                continue;
            sum_back<K, V>(t, grads, x);
            store<V>(to + (l.run.row + at - K + 1) * l.ld, x);
        }
    }
}

/* ---- launches ---- */

int32_t tcu_conv_columns(const tcu_conv *p)
{
    int32_t columns = 0;
    for (int i = 0; i < p->n_parts; i++)
        columns += rounded(p->part[i].channels);
    return columns;
}

static dim3 grid_of(const tcu_conv *p, int v)
{
    return dim3((tcu_conv_columns(p) + THREADS * v - 1) / (THREADS * v), p->n_runs, (p->longest + TILE - 1) / TILE);
}

/* The instance that holds so many taps. */
#define FOR_KERNEL(p, f, ...)                                                                                                  \
    ((p)->kernel <= 4               ? f<4, 4>(__VA_ARGS__) :                                                                   \
     (p)->kernel <= TCU_CONV_KERNEL ? f<TCU_CONV_KERNEL, 4>(__VA_ARGS__) :                                                     \
                                      (int)cudaErrorInvalidValue)

template <int K, int V> static int run_forward(const tcu_conv *p, bf16 *c, int64_t ldc, tcu_stream stream)
{
    return launch(conv_forward<K, V>, grid_of(p, V), THREADS, 0, stream, *p, c, ldc);
}

template <int K, int V> static int run_back(const tcu_conv *p, const bf16 *dc, int64_t ldc, grads_of dm, tcu_stream stream)
{
    return launch(conv_back<K, V>, grid_of(p, V), THREADS, 0, stream, *p, dc, ldc, dm);
}

int tcu_conv_forward(const tcu_conv *p, tcu_bf16 *c, int64_t ldc, tcu_stream stream)
{
    return FOR_KERNEL(p, run_forward, p, c, ldc, stream);
}

int tcu_conv_back(const tcu_conv *p, const tcu_bf16 *dc, int64_t ldc, tcu_bf16 *const dm[TCU_CONV_PARTS], tcu_stream stream)
{
    grads_of to = { { dm[0], dm[1], dm[2] } };
    return FOR_KERNEL(p, run_back, p, dc, ldc, to, stream);
}
