/* cuda_delta_step.cu - a step of the gated delta rule for sequences of one new row each: heads of unit length, the rule, the gated
 * norm in one launch, with the bits of the launches for training.
 *
 * A block has a value head of a sequence, then another. Its lanes ask for all of the state at once, 16 bytes each, and multiply it
 * from registers: the state's columns are rows of the matrix instruction, key and query its columns, so the same eight products are
 * summed as in training, in the same three instructions. The sums of groups of eight are added afterwards, in their order. While half
 * of the warps finish a head, the other half prepares the next one, whose state is on its way. Only heads of 128 numbers; others go the
 * way of training.
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

typedef struct job { /* a value head of a sequence */
    int row, head, i, slot; /* i: the row's place in its chunk */
    bool there, empty;
} job;

struct gates_of { /* of a row: e^(G_i - G_j), e^G_i */
    float decay[CHUNK], up, strength;
};

struct step_shared {
    float k[CHUNK * LD_K], n[CHUNK * LD_N]; /* the chunk's earlier keys; rows N, the row's own too */
    float sums[GROUPS][2][DIM];             /* of each group: state times key, state times query */
    float pairs[GROUPS][2][CHUNK];          /* the same: the chunk's keys times key, times query */
    float key[2][DIM], query[2][DIM];       /* of this head and of the next */
    gates_of gates[2];
    float o[DIM], kk[CHUNK], qk[CHUNK]; /* products of pairs times the decay between */
    job jobs[2];
};

typedef struct state_part { /* of a lane: four columns of rows t and t + 4 of each of its groups */
    float4 a[MINE], b[MINE];
} state_part;

/* Is read at once, whatever else waits; nothing unless `there`. */
DEVICE void load_wide(float4 &x, const float *from, bool there)
{
    asm volatile("{.reg .pred p; setp.ne.s32 p,%5,0; @p ld.global.L1::no_allocate.v4.f32 {%0,%1,%2,%3},[%4];}"
                 : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w)
                 : "l"(from), "r"((int)there));
}

DEVICE void load_state(const float *s, bool there, state_part &x)
{
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    s += (warp / 4 * MINE * 8 + t) * DIM + warp % 4 * STRIP + g * 4;
#pragma unroll
    for (int m = 0; m < MINE; m++) {
        load_wide(x.a[m], s + m * 8 * DIM, there);
        load_wide(x.b[m], s + (m * 8 + 4) * DIM, there);
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

DEVICE void multiply_state(step_shared &s, const state_part &x, int which)
{
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, column = warp % 4 * STRIP + g * 4;
    const float *from = (g == 0 ? s.key[which] : s.query[which]) + t;
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

/* Products of row i's key and query with the chunk's keys: a warp has two groups. Row 0 of the instruction is the key, row 8 the query. */
DEVICE void multiply_keys(step_shared &s, int i, int which)
{
    const int EACH = GROUPS / WARPS;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, group = threadIdx.x / 32 * EACH;
    uint32_t high[EACH][4], low[EACH][4];
#pragma unroll
    for (int m = 0; m < EACH; m++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float x = g == 0 ? (j % 2 ? s.query : s.key)[which][(group + m) * 8 + t + j / 2 * 4] : 0;
            high[m][j] = tf32_high(x);
            low[m][j] = tf32_low(x, high[m][j]);
        }
#pragma unroll 2
    for (int first = 0; first <= i; first += 8) {
        const float *keys = (first + g == i ? s.key[which] : s.k + (first + g) * LD_K) + group * 8 + t;
#pragma unroll
        for (int m = 0; m < EACH; m++) {
            uint32_t right_high[2], right_low[2];
            float sum[4] = {};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float x = keys[m * 8 + j * 4];
                right_high[j] = tf32_high(x);
                right_low[j] = tf32_low(x, right_high[j]);
            }
            mma_tf32(sum, low[m], right_high);
            mma_tf32(sum, high[m], right_low);
            mma_tf32(sum, high[m], right_high);
            if (g == 0) {
                *(float2 *)(s.pairs[group + m][0] + first + 2 * t) = make_float2(sum[0], sum[1]);
                *(float2 *)(s.pairs[group + m][1] + first + 2 * t) = make_float2(sum[2], sum[3]);
            }
        }
    }
}

/* The sums of the chunk's key j with the row's key (which = 0) or query, times the decay between. */
DEVICE void sum_pairs(step_shared &s, const gates_of &gates, int i, int which, int j)
{
    float sum = 0;
#pragma unroll
    for (int m = 0; m < GROUPS; m++)
        sum += s.pairs[m][which][j];
    (which ? s.qk : s.kk)[j] = j < i + which ? sum * gates.decay[j] : 0;
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
#pragma unroll 4
    for (; j + 4 <= i; j += 4) {
        float4 f = *(const float4 *)(s.kk + j);
        x = fmaf(-f.x, n[j * LD_N], x);
        x = fmaf(-f.y, n[(j + 1) * LD_N], x);
        x = fmaf(-f.z, n[(j + 2) * LD_N], x);
        x = fmaf(-f.w, n[(j + 3) * LD_N], x);
    }
    for (; j < i; j++)
        x = fmaf(-s.kk[j], n[j * LD_N], x);
    return x;
}

/* What o gets of the chunk's rows: each of the first four warps has 32 columns. */
DEVICE void multiply_rows(step_shared &s, int i)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, column = threadIdx.x / 32 * STRIP + g;
    const float *n = s.n + t * LD_N + column;
    float c[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        c[k] = s.o[column + k * 8];
#pragma unroll 2
    for (int m = 0; m < (i / 16 + 1) * 2; m++, n += 8 * LD_N) {
        float sum[2][4];
        parts_of row[2];
#pragma unroll
        for (int k = 0; k < 2; k++)
            row[k] = split(g == 0 ? s.qk[m * 8 + t + k * 4] : 0);
#pragma unroll
        for (int h = 0; h < 2; h++)
            multiply_columns(sum[h], n[h * 16], n[h * 16 + 8], n[4 * LD_N + h * 16], n[4 * LD_N + h * 16 + 8], row);
#pragma unroll
        for (int k = 0; k < 4; k++)
            c[k] += sum[k / 2][k % 2 * 2];
    }
#pragma unroll
    for (int k = 0; t == 0 && k < 4; k++)
        s.o[column + k * 8] = c[k];
}

/* The state after a full chunk: a warp has 16 of its rows. */
DEVICE void advance_state(const step_shared &s, const gates_of &gates, float *state, bool empty)
{
    int first = threadIdx.x / 32 * 16;
    const float *keys = s.k + first;
#pragma unroll 1
    for (int column = 0; column < DIM; column += STRIP) {
        float c[1][4][4] = {}, *to = state + first * DIM + column;
        const float *n = s.n + column;
        if (!empty)
            pairs_tf32<1, 4>(c, [&](int i, int j, float &x, float &y) {
                float2 old = *(const float2 *)(to + i * DIM + j);
                x = gates.up * old.x;
                y = gates.up * old.y;
            });
        multiply_tf32<TF32_EXACT, TF32_EXACT, 1, 4>(
            c, CHUNK / 8, [&](int i, int k) { return keys[k * LD_K + i]; }, [&](int k, int j) { return gates.decay[k] * n[k * LD_N + j]; });
        pairs_tf32<1, 4>(c, [&](int i, int j, float x, float y) { *(float2 *)(to + i * DIM + j) = make_float2(x, y); });
    }
}

/* The chunk's earlier keys. */
DEVICE void ask_keys(const tcu_delta_rule &p, step_shared &s, const job &j, int per)
{
    int kd = p.of.n_key_heads * DIM, lane = threadIdx.x % 32 * 4;
    const float *from = slot_of(p, j.slot).k + j.head / per * DIM + lane;
    for (int r = threadIdx.x / 32; j.there && r < j.i; r += WARPS)
        copy16(s.k + r * LD_K + lane, from + (int64_t)r * kd, true);
    copy_commit();
}

/* Its earlier rows N, by the first four warps; what follows N_i in its tile becomes zero. */
DEVICE void ask_rows(const tcu_delta_rule &p, step_shared &s, const job &j)
{
    int vd = p.of.n_value_heads * DIM, lane = threadIdx.x % 32 * 4, warp = threadIdx.x / 32;
    const float *from = slot_of(p, j.slot).n + j.head * DIM + lane;
    if (j.there && warp < 4) {
        for (int r = warp; r < j.i; r += 4)
            copy16(s.n + r * LD_N + lane, from + (int64_t)r * vd, true);
        for (int r = j.i + warp; r < (j.i | 15) + 1; r += 4)
            *(float4 *)(s.n + r * LD_N + lane) = make_float4(0, 0, 0, 0);
    }
    copy_commit();
}

/* Decays to the rows before, the sum up to this row, its strength. By 64 threads. */
DEVICE void put_gates(const tcu_delta_rule &p, gates_of &to, const job &job, int j)
{
    int heads = p.of.n_value_heads, i = job.i;
    double *sums = slot_of(p, job.slot).sums + job.head;
    const float *gates = p.gates + (int64_t)job.row * p.ld_gates + job.head;
    double sum = j < i ? sums[j * heads] : 0, last = i ? sums[(i - 1) * heads] : 0;
    last += (double)decay_of(p.of.decay[job.head], (double)gates[p.decay_at] + (double)p.of.dt_bias[job.head]);
    float e = (float)exp(j < i ? last - sum : last);
    to.decay[j] = j < i ? e : 1;
    if (j != i)
        return;
    to.up = e;
    to.strength = strength_of(gates[0]);
    sums[i * heads] = last;
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

DEVICE job job_of(const tcu_delta_rule &p, int x)
{
    job j = {};
    if (x >= p.n_runs * p.of.n_value_heads)
        return j;
    tcu_run run = p.runs[x / p.of.n_value_heads];
    j.head = x % p.of.n_value_heads;
    j.row = run.row;
    j.i = run.position % CHUNK;
    j.there = run.n > 0;
    j.empty = run.position < CHUNK;
    j.slot = run.slot;
    return j;
}

DEVICE void ask_state(const tcu_delta_rule &p, const job &j, state_part &part)
{
    load_state(slot_of(p, j.slot).s + (int64_t)j.head * DIM * DIM, j.there && !j.empty, part);
}

/* The launch before may still run up to here: what does not depend on it is asked for. */
DEVICE void wait_for_launch_before(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Gates, key and query of a head, by the last four warps. */
DEVICE void prepare_head(const tcu_delta_rule &p, step_shared &s, const job &j, int per, int which)
{
    const bf16 *c = p.c + (int64_t)j.row * p.ld_c + j.head / per * DIM;
    int warp = threadIdx.x / 32;
    if (warp < 6)
        put_gates(p, s.gates[which], j, threadIdx.x - 4 * 32);
    else if (warp == 6)
        unit_head<DIM / 32>(c + p.k_at, DIM, 1, s.key[which]);
    else
        unit_head<DIM / 32>(c, DIM, 1.0f / sqrtf((float)DIM), s.query[which]);
}

/* The first four warps wait for each other. */
DEVICE void sync_columns(void)
{
    asm volatile("bar.sync 1,%0;" ::"n"((int)DIM) : "memory");
}

/* N of the row, which stays in the slot, o and its norm, by the first four warps: a thread has a column. */
DEVICE void end_head(const tcu_delta_rule &p, const tcu_gated_norm &norm, bf16 *y, step_shared &s, const job &j, const gates_of &gates,
                     float x)
{
    int column = threadIdx.x;
    x = solve_row(s, j.i, column, x) * gates.strength;
    s.n[j.i * LD_N + column] = x;
    slot_of(p, j.slot).n[((int64_t)j.i * p.of.n_value_heads + j.head) * DIM + column] = x;
    sync_columns();
    multiply_rows(s, j.i);
    sync_columns();
    if (y && column < 32)
        put_normed(norm, s.o, j.row, j.head, y);
    if (p.o)
        p.o[((int64_t)j.row * p.of.n_value_heads + j.head) * DIM + column] = s.o[column];
}

/* A block has several heads one after the other: while one is finished, the next one is prepared. */
__global__ void __launch_bounds__(THREADS, 2) delta_step(tcu_delta_rule p, tcu_gated_norm norm, bf16 *y)
{
    extern __shared__ __align__(16) unsigned char bytes[];
    step_shared &s = *(step_shared *)bytes;
    int per = p.of.n_value_heads / p.of.n_key_heads, heads = p.n_runs * p.of.n_value_heads, which = 0;
    int tid = threadIdx.x, column = tid % DIM;
    float v = 0;
    state_part part = {};
    if (tid == 0)
        s.jobs[0] = {};
    __syncthreads();
    for (int x = (int)blockIdx.x - (int)gridDim.x; x < heads; x += gridDim.x, which ^= 1) { /* the first turn only asks */
        const job &now = s.jobs[which], &next = s.jobs[which ^ 1];
        const gates_of &gates = s.gates[which];
        bool moves = now.there && now.i + 1 == CHUNK;
        float sum = 0;
        if (tid == THREADS - 1)
            s.jobs[which ^ 1] = job_of(p, x + gridDim.x);
        if (now.there)
            multiply_keys(s, now.i, which);
        if (now.there && !now.empty)
            multiply_state(s, part, which);
        copy_wait<0>();
        __syncthreads(); /* sums of groups and earlier rows are there; nobody needs the keys any longer, unless the state moves on */
        ask_state(p, next, part);
        if (!moves)
            ask_keys(p, s, next, per);
        if (x < 0)
            wait_for_launch_before();
        if (now.there) {
            if (!now.empty)
                sum = gates.up * sum_groups(s, tid / DIM, column);
            if (tid >= DIM) {
                sum_pairs(s, gates, now.i, column / CHUNK, column % CHUNK);
                s.o[column] = sum;
            }
        }
        __syncthreads();
        if (tid < DIM) {
            float now_v = v;
            if (next.there)
                v = wide(p.c[(int64_t)next.row * p.ld_c + p.v_at + next.head * DIM + column]);
            if (now.there)
                end_head(p, norm, y, s, now, gates, now_v - sum);
        } else {
            if (now.there && now.head % per == 0)
                slot_of(p, now.slot).k[((int64_t)now.i * p.of.n_key_heads + now.head / per) * DIM + column] = s.key[which][column];
            if (next.there)
                prepare_head(p, s, next, per, which ^ 1);
        }
        if (moves) {
            if (tid < DIM)
                s.k[now.i * LD_K + column] = s.key[which][column];
            __syncthreads();
            advance_state(s, gates, slot_of(p, now.slot).s + (int64_t)now.head * DIM * DIM, now.empty);
            __syncthreads();
            ask_keys(p, s, next, per);
        }
        ask_rows(p, s, next);
        copy_wait<1>(); /* keys */
        __syncthreads();
    }
}

bool tcu_delta_steps(const tcu_delta_rule *p)
{
    return p->slots && p->longest == 1 && p->of.dk == DIM && p->of.dv == DIM;
}

static int processors(void)
{
    static int count;
    int device = 0;
    if (!count && (cudaGetDevice(&device) || cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device)))
        return 1;
    return count;
}

int tcu_delta_step(const tcu_delta_rule *p, const tcu_gated_norm *norm, tcu_bf16 *y, tcu_stream stream)
{
    static const tcu_gated_norm none = {};
    int heads = p->n_runs * p->of.n_value_heads, most = 2 * processors(), rc = allow_shared(delta_step, sizeof(step_shared));
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3(heads < most ? heads : most);
    c.blockDim = dim3(THREADS);
    c.dynamicSmemBytes = sizeof(step_shared);
    c.stream = stream;
    c.attrs = &early;
    c.numAttrs = 1;
    return rc ? rc : (int)cudaLaunchKernelEx(&c, delta_step, *p, norm ? *norm : none, y);
}
