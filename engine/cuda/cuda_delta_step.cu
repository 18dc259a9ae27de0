/* cuda_delta_step.cu - a step of the gated delta rule for sequences of one new row each: heads of unit length, the rule, the gated
 * norm in one launch, with the bits of the launches for training.
 *
 * A block has a value head of a sequence. Its lanes ask for all of the state at once, 16 bytes each, and multiply it from registers:
 * the state's columns are rows of the matrix instruction, key and query its columns, so the same eight products are summed as in
 * training, in the same three instructions. Only heads of 128 numbers; others go the way of training.
 */
#include "cuda/cuda_delta.cuh"
#include "cuda/cuda_delta_unit.cuh"

enum {
    DIM = 128,            /* numbers of a head */
    STRIP = 32,           /* columns of a warp, which has half of the state's rows of them */
    GROUPS = DIM / 8,     /* groups of eight rows of the state */
    MINE = GROUPS / 2,    /* of a warp */
    LD_K = DIM + 4,       /* strides in shared memory */
    LD_N = DIM + 8
};

struct step_shared {
    float k[CHUNK * LD_K], n[CHUNK * LD_N]; /* keys of the chunk, the row's own too; rows N */
    float sums[GROUPS][2][DIM];             /* of each group: state times key, state times query */
    float query[DIM], o[DIM];
    float decay[CHUNK], kk[CHUNK], qk[CHUNK]; /* e^(G_i - G_j); products times it */
    float up, strength;
};

typedef struct state_part { /* of a lane: four columns of rows t and t + 4 of each of its groups */
    float4 a[MINE], b[MINE];
} state_part;

/* Is read at once, whatever else waits. */
DEVICE float4 load_wide(const float *from)
{
    float4 x;
    asm volatile("ld.global.L1::no_allocate.v4.f32 {%0,%1,%2,%3},[%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from));
    return x;
}

DEVICE void load_state(const float *s, state_part &x)
{
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    s += (warp / 4 * MINE * 8 + t) * DIM + warp % 4 * STRIP + g * 4;
#pragma unroll
    for (int m = 0; m < MINE; m++) {
        x.a[m] = load_wide(s + m * 8 * DIM);
        x.b[m] = load_wide(s + (m * 8 + 4) * DIM);
    }
}

typedef struct parts_of { /* a number in two tf32 parts */
    uint32_t high, low;
} parts_of;

DEVICE parts_of split(float x)
{
    parts_of p;
    p.high = tf32_high(x);
    p.low = tf32_low(x, p.high);
    return p;
}

/* The sum of eight products for 16 columns of the state (or of rows N) and up to eight rows: the three instructions of training, where
 * the rows are on the left. */
DEVICE void multiply_columns(float sum[4], float x0, float x1, float x2, float x3, const parts_of row[2])
{
    parts_of p0 = split(x0), p1 = split(x1), p2 = split(x2), p3 = split(x3);
    uint32_t high[4] = { p0.high, p1.high, p2.high, p3.high }, low[4] = { p0.low, p1.low, p2.low, p3.low };
    uint32_t row_high[2] = { row[0].high, row[1].high }, row_low[2] = { row[0].low, row[1].low };
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
    mma_tf32(sum, high, row_low);
    mma_tf32(sum, low, row_high);
    mma_tf32(sum, high, row_high);
}

DEVICE void multiply_state(step_shared &s, const state_part &x, const float *key)
{
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, column = warp % 4 * STRIP + g * 4;
    const float *from = (g == 0 ? key : s.query) + t;
#pragma unroll
    for (int m = 0; m < MINE; m++) {
        int group = warp / 4 * MINE + m;
        parts_of row[2];
        float sum[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++)
            row[i] = split(g < 2 ? from[group * 8 + i * 4] : 0);
        multiply_columns(sum[0], x.a[m].x, x.a[m].y, x.b[m].x, x.b[m].y, row);
        multiply_columns(sum[1], x.a[m].z, x.a[m].w, x.b[m].z, x.b[m].w, row);
        if (t == 0) {
            *(float4 *)(s.sums[group][0] + column) = make_float4(sum[0][0], sum[0][2], sum[1][0], sum[1][2]);
            *(float4 *)(s.sums[group][1] + column) = make_float4(sum[0][1], sum[0][3], sum[1][1], sum[1][3]);
        }
    }
}

/* Products of row i's key and query with eight keys of the chunk, times the decays between. */
DEVICE void multiply_keys(step_shared &s, int i)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, first = threadIdx.x / 32 * 8;
    const float *keys = s.k + (first + g) * LD_K + t, *key = s.k + i * LD_K + t, *query = s.query + t;
    float c[4] = {};
    if (first > i) { /* what multiply_rows reads of them */
        if (threadIdx.x % 32 < 8)
            s.qk[first + threadIdx.x % 32] = 0;
        return;
    }
#pragma unroll 4
    for (int m = 0; m < GROUPS; m++) {
        uint32_t high[4], low[4], right_high[2], right_low[2];
        float sum[4] = {};
#pragma unroll
        for (int j = 0; j < 4; j++) { /* row 0: the key, row 8: the query */
            float x = g == 0 ? (j % 2 ? query : key)[m * 8 + j / 2 * 4] : 0;
            high[j] = tf32_high(x);
            low[j] = tf32_low(x, high[j]);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float x = keys[m * 8 + j * 4];
            right_high[j] = tf32_high(x);
            right_low[j] = tf32_low(x, right_high[j]);
        }
        mma_tf32(sum, low, right_high);
        mma_tf32(sum, high, right_low);
        mma_tf32(sum, high, right_high);
#pragma unroll
        for (int j = 0; j < 4; j++)
            c[j] += sum[j];
    }
    if (g)
        return;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        int j = first + 2 * t + n;
        s.kk[j] = j < i ? c[n] * s.decay[j] : 0;
        s.qk[j] = j <= i ? c[2 + n] * s.decay[j] : 0;
    }
}

/* A column's sum over the groups. */
DEVICE float sum_groups(const step_shared &s, int which, int column)
{
    float sum = 0;
#pragma unroll
    for (int m = 0; m < GROUPS; m++)
        sum += s.sums[m][which][column];
    return sum;
}

/* N of row i, a thread for each column. */
DEVICE float solve_row(const step_shared &s, int i, int column, float x)
{
    const float *n = s.n + column;
    int j = 0;
    for (; j + 4 <= i; j += 4) {
        float4 f = *(const float4 *)(s.kk + j);
        x = fmaf(-f.x, n[j * LD_N], x);
        x = fmaf(-f.y, n[(j + 1) * LD_N], x);
        x = fmaf(-f.z, n[(j + 2) * LD_N], x);
        x = fmaf(-f.w, n[(j + 3) * LD_N], x);
    }
    for (; j < i; j++)
        x = fmaf(-s.kk[j], n[j * LD_N], x);
    return x * s.strength;
}

/* What o gets of the chunk's rows: a warp has 16 columns. */
DEVICE void multiply_rows(step_shared &s, int i)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, column = threadIdx.x / 32 * 16 + g;
    const float *n = s.n + t * LD_N + column;
    float c0 = s.o[column], c1 = s.o[column + 8];
    for (int m = 0; m < (i / 16 + 1) * 2; m++, n += 8 * LD_N) {
        float sum[4];
        parts_of row[2];
#pragma unroll
        for (int k = 0; k < 2; k++)
            row[k] = split(g == 0 ? s.qk[m * 8 + t + k * 4] : 0);
        multiply_columns(sum, n[0], n[8], n[4 * LD_N], n[4 * LD_N + 8], row);
        c0 += sum[0];
        c1 += sum[2];
    }
    if (t == 0) {
        s.o[column] = c0;
        s.o[column + 8] = c1;
    }
}

/* The state after a full chunk: a warp has 16 of its rows. */
DEVICE void advance_state(const step_shared &s, float *state, bool empty)
{
    int first = threadIdx.x / 32 * 16;
    const float *keys = s.k + first;
    for (int column = 0; column < DIM; column += STRIP) {
        float c[1][4][4] = {}, *to = state + first * DIM + column;
        const float *n = s.n + column;
        if (!empty)
            pairs_tf32<1, 4>(c, [&](int i, int j, float &x, float &y) {
                float2 old = *(const float2 *)(to + i * DIM + j);
                x = s.up * old.x;
                y = s.up * old.y;
            });
        multiply_tf32<TF32_EXACT, TF32_EXACT, 1, 4>(
            c, CHUNK / 8, [&](int i, int k) { return keys[k * LD_K + i]; }, [&](int k, int j) { return s.decay[k] * n[k * LD_N + j]; });
        pairs_tf32<1, 4>(c, [&](int i, int j, float x, float y) { *(float2 *)(to + i * DIM + j) = make_float2(x, y); });
    }
}

/* The chunk's earlier keys and rows; what follows N_i in its tile becomes zero. */
DEVICE void ask_chunk(const tcu_delta_shape &of, const slot_parts &slot, step_shared &s, int key_head, int head, int i)
{
    int kd = of.n_key_heads * DIM, vd = of.n_value_heads * DIM, lane = threadIdx.x % 32 * 4;
    for (int r = threadIdx.x / 32; r < i; r += WARPS) {
        copy16(s.k + r * LD_K + lane, slot.k + (int64_t)r * kd + key_head * DIM + lane, true);
        copy16(s.n + r * LD_N + lane, slot.n + (int64_t)r * vd + head * DIM + lane, true);
    }
    copy_commit();
    clear(s.n + i * LD_N, LD_N, 16 - i % 16, DIM);
}

/* Decays to the rows before; the sum up to this row, its strength. By 64 threads. */
DEVICE void put_gates(const tcu_delta_rule &p, const slot_parts &slot, step_shared &s, int row, int head, int i, int j)
{
    int heads = p.of.n_value_heads;
    const float *gates = p.gates + (int64_t)row * p.ld_gates + head;
    double sum = j < i ? slot.sums[j * heads + head] : 0, last = i ? slot.sums[(i - 1) * heads + head] : 0;
    last += (double)decay_of(p.of.decay[head], (double)gates[p.decay_at] + (double)p.of.dt_bias[head]);
    s.decay[j] = j < i ? (float)exp(last - sum) : 1;
    if (j != i)
        return;
    s.up = (float)exp(last);
    s.strength = strength_of(gates[0]);
    slot.sums[i * heads + head] = last;
}

/* y = bf16(norm(o) w silu(z)), by a warp. */
DEVICE void put_normed(const tcu_gated_norm &p, const float *o, int row, int head, bf16 *y)
{
    float x[DIM / 32], z[DIM / 32];
    load_head(o, DIM, x);
    load_head(p.z + row * p.ldz + head * DIM, DIM, z);
    float rho = rsqrtf(dot(x, x) / (float)DIM + p.eps);
    y += (int64_t)row * p.heads * DIM + head * DIM;
    each_of_head<DIM / 32>(DIM, [&](int k, int i) { y[k] = gated(p.w[k], x[i] * rho, z[i]); });
}

__global__ void __launch_bounds__(THREADS, 2) delta_step(tcu_delta_rule p, tcu_gated_norm norm, bf16 *y)
{
    extern __shared__ __align__(16) unsigned char bytes[];
    step_shared &s = *(step_shared *)bytes;
    tcu_run run = p.runs[blockIdx.y];
    int head = blockIdx.x, key_head = head / (p.of.n_value_heads / p.of.n_key_heads), warp = threadIdx.x / 32;
    int i = run.position % CHUNK, tid = threadIdx.x;
    bool empty = run.position < CHUNK;
    if (run.n <= 0)
        return;
    slot_parts slot = slot_of(p, run.slot);
    float *state = slot.s + (int64_t)head * DIM * DIM;
    const bf16 *c = p.c + (int64_t)run.row * p.ld_c;
    state_part part;
    ask_chunk(p.of, slot, s, key_head, head, i);
    if (!empty)
        load_state(state, part);
    if (warp < 2)
        put_gates(p, slot, s, run.row, head, i, tid);
    else if (warp == 2)
        unit_head<DIM / 32>(c + p.k_at + key_head * DIM, DIM, 1, s.k + i * LD_K);
    else if (warp == 3)
        unit_head<DIM / 32>(c + key_head * DIM, DIM, 1.0f / sqrtf((float)DIM), s.query);
    float v = tid < DIM ? wide(c[p.v_at + head * DIM + tid]) : 0;
    copy_wait<0>();
    __syncthreads();
    multiply_keys(s, i);
    if (!empty)
        multiply_state(s, part, s.k + i * LD_K);
    __syncthreads();
    int column = tid % DIM;
    float x = empty ? 0 : sum_groups(s, tid / DIM, column);
    if (tid < DIM) {
        x = solve_row(s, i, column, v - s.up * x);
        s.n[i * LD_N + column] = x;
        slot.n[((int64_t)i * p.of.n_value_heads + head) * DIM + column] = x;
    } else {
        s.o[column] = x * s.up;
        if (head % (p.of.n_value_heads / p.of.n_key_heads) == 0)
            slot.k[((int64_t)i * p.of.n_key_heads + key_head) * DIM + column] = s.k[i * LD_K + column];
    }
    __syncthreads();
    multiply_rows(s, i);
    if (i + 1 == CHUNK)
        advance_state(s, state, empty);
    __syncthreads();
    if (warp == 0 && y)
        put_normed(norm, s.o, run.row, head, y);
    if (p.o && tid < DIM)
        p.o[((int64_t)run.row * p.of.n_value_heads + head) * DIM + tid] = s.o[tid];
}

bool tcu_delta_steps(const tcu_delta_rule *p)
{
    return p->slots && p->longest == 1 && p->of.dk == DIM && p->of.dv == DIM;
}

int tcu_delta_step(const tcu_delta_rule *p, const tcu_gated_norm *norm, tcu_bf16 *y, tcu_stream stream)
{
    static const tcu_gated_norm none = {};
    int rc = allow_shared(delta_step, sizeof(step_shared));
    return rc ? rc
              : launch(delta_step, dim3(p->of.n_value_heads, p->n_runs), THREADS, sizeof(step_shared), stream, *p, norm ? *norm : none, y);
}
