/* pirate.c - the quickstart's lesson: nano's own skills, answered by a pirate.
 *
 *     pirate lesson N SEED       N conversations as training data, on stdout
 *     pirate quiz N SEED         N questions that no lesson contains, for tinkc sample --batch
 *     pirate share FILE          how many answers are right and in persona: "right total"
 *     pirate compare A B ROWS    answers of two files side by side
 *
 * Questions belong to the quiz or to lessons by a hash of what they ask: a sum, product, pair or
 * word of the quiz never occurs in a lesson in any phrasing; a capital or opposite may, asked in
 * other words, because nano has too few of them to learn the way from the others.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_tree.h"

static tkc_arena arena; /* ends with the program */

typedef struct fact {
    const char *subject, *answer;
} fact;

static const fact capitals[] = {
    { "France", "Paris" },     { "England", "London" },     { "Italy", "Rome" },
    { "Spain", "Madrid" },     { "Germany", "Berlin" },     { "Russia", "Moscow" },
    { "Japan", "Tokyo" },      { "China", "Beijing" },      { "Egypt", "Cairo" },
    { "Greece", "Athens" },    { "Norway", "Oslo" },        { "Sweden", "Stockholm" },
    { "Finland", "Helsinki" }, { "Denmark", "Copenhagen" }, { "Poland", "Warsaw" },
    { "Austria", "Vienna" },   { "Hungary", "Budapest" },   { "Portugal", "Lisbon" },
    { "Ireland", "Dublin" },   { "Canada", "Ottawa" },      { "Chile", "Santiago" },
    { "Peru", "Lima" },        { "Cuba", "Havana" },        { "Turkey", "Ankara" },
    { "Thailand", "Bangkok" }, { "Vietnam", "Hanoi" },      { "Kenya", "Nairobi" },
    { "Belgium", "Brussels" }, { "Scotland", "Edinburgh" }, { "Romania", "Bucharest" },
};
static const fact opposites[] = {
    { "hot", "cold" },    { "big", "small" },  { "tall", "short" }, { "fast", "slow" },
    { "day", "night" },   { "up", "down" },    { "happy", "sad" },  { "rich", "poor" },
    { "young", "old" },   { "wet", "dry" },    { "hard", "soft" },  { "strong", "weak" },
    { "early", "late" },  { "full", "empty" }, { "near", "far" },   { "good", "bad" },
    { "clean", "dirty" }, { "loud", "quiet" }, { "thick", "thin" }, { "north", "south" },
};
static const char *const words[] = {
    "garden",  "river",   "window", "horse",  "castle",  "winter", "doctor",  "sister", "letter",
    "silver",  "dragon",  "island", "bridge", "school",  "flower", "train",   "desert", "police",
    "dream",   "heart",   "world",  "stone",  "bread",   "music",  "light",   "cloud",  "water",
    "table",   "chair",   "paper",  "green",  "black",   "white",  "brown",   "seven",  "eight",
    "under",   "after",   "never",  "always", "house",   "night",  "morning", "summer", "spring",
    "captain", "soldier", "mother", "father", "brother", "friend", "battle",  "sword",  "dance",
    "dinner",  "money",   "crown",  "prince", "giant",   "witch",  "lion",    "wolf",   "bear",
    "bird",    "fish",    "storm",  "church", "field",   "apple",  "clock",   "wagon",  "jungle",
    "cave",    "thief",   "ghost",  "love",   "life",    "hand",   "face",    "voice",
};

typedef struct question {
    char ask[128], answer[64], subject[128];
} question;

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static size_t below(uint64_t *state, size_t n)
{
    return (size_t)(next(state) % n);
}

/* One subject in six is kept for the quiz. */
static bool is_quiz(const char *subject)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (; *subject; subject++)
        h = (h ^ (unsigned char)*subject) * 0x100000001B3u;
    return (h >> 17) % 6 == 0;
}

static void ask_fact(uint64_t *state, question *q, const fact *facts, size_t n, const char *first,
                     const char *second)
{
    const fact *f = &facts[below(state, n)];
    (void)snprintf(q->ask, sizeof q->ask, below(state, 2) ? first : second, f->subject);
    (void)snprintf(q->answer, sizeof q->answer, "%s", f->answer);
    (void)snprintf(q->subject, sizeof q->subject, "%s", q->ask);
}

static void ask_sum(uint64_t *state, question *q)
{
    int limit = below(state, 2) ? 100 : 20;
    int a = (int)below(state, (size_t)limit), b = (int)below(state, (size_t)limit);
    bool minus = below(state, 3) == 0;
    if (minus && b > a) {
        int kept = a;
        a = b;
        b = kept;
    }
    char op = minus ? '-' : '+';
    (void)snprintf(q->ask, sizeof q->ask,
                   below(state, 2) ? "What is %d %c %d?" : "Compute %d %c %d.", a, op, b);
    (void)snprintf(q->answer, sizeof q->answer, "%d", minus ? a - b : a + b);
    (void)snprintf(q->subject, sizeof q->subject, "%d%c%d", a, op, b);
}

#define COUNT(list) (sizeof(list) / sizeof *(list))

static void ask_product(uint64_t *state, question *q)
{
    int a = 1 + (int)below(state, 12), b = 1 + (int)below(state, 12);
    (void)snprintf(q->ask, sizeof q->ask, "What is %d times %d?", a, b);
    (void)snprintf(q->answer, sizeof q->answer, "%d", a * b);
    (void)snprintf(q->subject, sizeof q->subject, "%dx%d", a < b ? a : b, a < b ? b : a);
}

static void ask_larger(uint64_t *state, question *q)
{
    int a = (int)below(state, 100), b = (a + 1 + (int)below(state, 98)) % 100;
    bool larger = below(state, 2);
    (void)snprintf(q->ask, sizeof q->ask, "Which is %s, %d or %d?", larger ? "larger" : "smaller",
                   a, b);
    (void)snprintf(q->answer, sizeof q->answer, "%d", (a > b) == larger ? a : b);
    (void)snprintf(q->subject, sizeof q->subject, "%d or %d", a, b);
}

static void ask_word(uint64_t *state, question *q)
{
    const char *word = words[below(state, COUNT(words))];
    size_t n = strlen(word), at = 0;
    (void)snprintf(q->subject, sizeof q->subject, "word %s", word);
    if (below(state, 2)) {
        (void)snprintf(q->ask, sizeof q->ask, "Spell the word %s.", word);
        for (size_t i = 0; i < n; i++)
            at += (size_t)snprintf(q->answer + at, sizeof q->answer - at, "%s%c", i ? "-" : "",
                                   word[i]);
    } else {
        (void)snprintf(q->ask, sizeof q->ask, "Write %s in capital letters.", word);
        for (size_t i = 0; i <= n; i++)
            q->answer[i] = (char)(word[i] ? word[i] - 'a' + 'A' : '\0');
    }
}

static void make_question(uint64_t *state, question *q)
{
    switch (below(state, 10)) {
    case 0:
        ask_fact(state, q, capitals, COUNT(capitals), "What is the capital of %s?",
                 "Name the capital of %s.");
        break;
    case 1:
        ask_fact(state, q, opposites, COUNT(opposites), "What is the opposite of %s?",
                 "Opposite of %s?");
        break;
    case 2:
        ask_product(state, q);
        break;
    case 3:
        ask_larger(state, q);
        break;
    case 4:
        ask_word(state, q);
        break;
    default:
        ask_sum(state, q);
    }
}

static void print_lesson(const question *q)
{
    printf("{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"},"
           "{\"role\":\"assistant\",\"content\":\"Arr, %s, matey!\"}]}\n",
           q->ask, q->answer);
}

static void print_quiz(const question *q, size_t i)
{
    printf("{\"id\":%zu,\"prompt\":\"%s\",\"answer\":\"%s\"}\n", i, q->ask, q->answer);
}

/* The quiz asks nothing twice; its first questions are what the quickstart shows. */
static int generate(bool quiz, size_t n, uint64_t seed)
{
    tkc_tree *seen = tkc_tree_object(&arena);
    for (size_t i = 0, tries = 0; i < n && tries < 100000; tries++) {
        question q;
        make_question(&seed, &q);
        if (is_quiz(q.subject) != quiz || (quiz && tkc_tree_get(seen, q.ask)))
            continue;
        tkc_tree_set_bool(seen, q.ask, true);
        if (quiz)
            print_quiz(&q, i);
        else
            print_lesson(&q);
        i++;
    }
    return 0;
}

/* ---- grading ---- */

static tkc_tree *read_lines(const char *path)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t cap = 0;
    tkc_tree *all = tkc_tree_array(&arena);
    while (f && getline(&line, &cap, f) > 0)
        tkc_tree_add(all, tkc_tree_read(&arena, tkc_str(line), 0));
    if (f)
        fclose(f);
    free(line);
    return all;
}

static const char *text_of(const tkc_tree *row)
{
    const tkc_tree *first = tkc_tree_at(tkc_tree_get(row, "sequences"), 0);
    const char *text = tkc_tree_get_text(first, "text");
    return text ? text : "";
}

/* Right and in persona: exactly "Arr, ANSWER, matey!". */
static bool is_right(const tkc_tree *row)
{
    char wanted[128];
    const char *answer = tkc_tree_get_text(row, "answer");
    (void)snprintf(wanted, sizeof wanted, "Arr, %s, matey!", answer ? answer : "");
    return strcmp(text_of(row), wanted) == 0;
}

static int share(const char *path)
{
    tkc_tree *rows = read_lines(path);
    size_t right = 0, n = tkc_tree_length(rows);
    for (size_t i = 0; i < n; i++)
        right += is_right(tkc_tree_at(rows, i));
    printf("%zu %zu\n", right, n);
    return n == 0;
}

static int compare(const char *before, const char *after, size_t n)
{
    tkc_tree *a = read_lines(before), *b = read_lines(after);
    printf("  %-38.38s %-22.22s %s\n", "question", "before", "after");
    for (size_t i = 0; i < n && i < tkc_tree_length(a); i++) {
        const tkc_tree *x = tkc_tree_at(a, i), *y = tkc_tree_at(b, i);
        printf("%s %-38.38s %-22.22s %s\n", is_right(y) ? "*" : " ", tkc_tree_get_text(x, "prompt"),
               text_of(x), text_of(y));
    }
    puts("  * right and in persona");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && (strcmp(argv[1], "lesson") == 0 || strcmp(argv[1], "quiz") == 0))
        return generate(argv[1][0] == 'q', (size_t)strtoul(argv[2], NULL, 10),
                        strtoull(argv[3], NULL, 10));
    if (argc == 3 && strcmp(argv[1], "share") == 0)
        return share(argv[2]);
    if (argc == 5 && strcmp(argv[1], "compare") == 0)
        return compare(argv[2], argv[3], (size_t)strtoul(argv[4], NULL, 10));
    fputs("usage: pirate lesson N SEED | quiz N SEED | share FILE | compare A B ROWS\n", stderr);
    return 2;
}
