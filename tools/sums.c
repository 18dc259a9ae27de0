/* sums.c - the exercise of `./quickstart rl`: sums whose answer is right only as a whole equation.
 *
 *     sums N SEED    N rows {"prompt": "What is 57 + 26?", "answer": "57 + 26 = 83"}, none twice
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LOW = 10, HIGH = 99, RANGE = HIGH - LOW + 1 };

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int main(int argc, char **argv)
{
    static bool seen[2][RANGE][RANGE];
    long n = argc == 3 ? strtol(argv[1], NULL, 10) : 0;
    uint64_t state = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (n < 1 || n > RANGE * RANGE / 2) {
        fprintf(stderr, "usage: sums N SEED\n");
        return 2;
    }
    while (n > 0) {
        int a = (int)(next(&state) % RANGE), b = (int)(next(&state) % RANGE);
        bool minus = next(&state) % 2;
        if (minus && a < b) {
            int kept = a;
            a = b;
            b = kept;
        }
        if (seen[minus][a][b])
            continue;
        seen[minus][a][b] = true;
        int x = a + LOW, y = b + LOW, z = minus ? x - y : x + y;
        char op = minus ? '-' : '+';
        printf("{\"prompt\": \"What is %d %c %d?\", \"answer\": \"%d %c %d = %d\"}\n", x, op, y, x,
               op, y, z);
        n--;
    }
    return 0;
}
