/* jinja_char.c - characters with Python's rules: classes, cases, white space.
 *
 * Simple cases come from utf8proc; those that turn one character into several are listed here
 * (Unicode's SpecialCasing, the unconditional part). May touch: utf8proc, the output buffer.
 */
#include "jinja/jinja.h"

#include <string.h>
#include <utf8proc.h>

typedef struct special_case {
    uint32_t from, to[3];
} special_case;

/* clang-format off */
static const special_case special_upper[] = {
    { 0x00DF, { 0x0053, 0x0053, 0x0000 } }, { 0x0149, { 0x02BC, 0x004E, 0x0000 } },
    { 0x01F0, { 0x004A, 0x030C, 0x0000 } }, { 0x0390, { 0x0399, 0x0308, 0x0301 } },
    { 0x03B0, { 0x03A5, 0x0308, 0x0301 } }, { 0x0587, { 0x0535, 0x0552, 0x0000 } },
    { 0x1E96, { 0x0048, 0x0331, 0x0000 } }, { 0x1E97, { 0x0054, 0x0308, 0x0000 } },
    { 0x1E98, { 0x0057, 0x030A, 0x0000 } }, { 0x1E99, { 0x0059, 0x030A, 0x0000 } },
    { 0x1E9A, { 0x0041, 0x02BE, 0x0000 } }, { 0x1F50, { 0x03A5, 0x0313, 0x0000 } },
    { 0x1F52, { 0x03A5, 0x0313, 0x0300 } }, { 0x1F54, { 0x03A5, 0x0313, 0x0301 } },
    { 0x1F56, { 0x03A5, 0x0313, 0x0342 } }, { 0x1F80, { 0x1F08, 0x0399, 0x0000 } },
    { 0x1F81, { 0x1F09, 0x0399, 0x0000 } }, { 0x1F82, { 0x1F0A, 0x0399, 0x0000 } },
    { 0x1F83, { 0x1F0B, 0x0399, 0x0000 } }, { 0x1F84, { 0x1F0C, 0x0399, 0x0000 } },
    { 0x1F85, { 0x1F0D, 0x0399, 0x0000 } }, { 0x1F86, { 0x1F0E, 0x0399, 0x0000 } },
    { 0x1F87, { 0x1F0F, 0x0399, 0x0000 } }, { 0x1F88, { 0x1F08, 0x0399, 0x0000 } },
    { 0x1F89, { 0x1F09, 0x0399, 0x0000 } }, { 0x1F8A, { 0x1F0A, 0x0399, 0x0000 } },
    { 0x1F8B, { 0x1F0B, 0x0399, 0x0000 } }, { 0x1F8C, { 0x1F0C, 0x0399, 0x0000 } },
    { 0x1F8D, { 0x1F0D, 0x0399, 0x0000 } }, { 0x1F8E, { 0x1F0E, 0x0399, 0x0000 } },
    { 0x1F8F, { 0x1F0F, 0x0399, 0x0000 } }, { 0x1F90, { 0x1F28, 0x0399, 0x0000 } },
    { 0x1F91, { 0x1F29, 0x0399, 0x0000 } }, { 0x1F92, { 0x1F2A, 0x0399, 0x0000 } },
    { 0x1F93, { 0x1F2B, 0x0399, 0x0000 } }, { 0x1F94, { 0x1F2C, 0x0399, 0x0000 } },
    { 0x1F95, { 0x1F2D, 0x0399, 0x0000 } }, { 0x1F96, { 0x1F2E, 0x0399, 0x0000 } },
    { 0x1F97, { 0x1F2F, 0x0399, 0x0000 } }, { 0x1F98, { 0x1F28, 0x0399, 0x0000 } },
    { 0x1F99, { 0x1F29, 0x0399, 0x0000 } }, { 0x1F9A, { 0x1F2A, 0x0399, 0x0000 } },
    { 0x1F9B, { 0x1F2B, 0x0399, 0x0000 } }, { 0x1F9C, { 0x1F2C, 0x0399, 0x0000 } },
    { 0x1F9D, { 0x1F2D, 0x0399, 0x0000 } }, { 0x1F9E, { 0x1F2E, 0x0399, 0x0000 } },
    { 0x1F9F, { 0x1F2F, 0x0399, 0x0000 } }, { 0x1FA0, { 0x1F68, 0x0399, 0x0000 } },
    { 0x1FA1, { 0x1F69, 0x0399, 0x0000 } }, { 0x1FA2, { 0x1F6A, 0x0399, 0x0000 } },
    { 0x1FA3, { 0x1F6B, 0x0399, 0x0000 } }, { 0x1FA4, { 0x1F6C, 0x0399, 0x0000 } },
    { 0x1FA5, { 0x1F6D, 0x0399, 0x0000 } }, { 0x1FA6, { 0x1F6E, 0x0399, 0x0000 } },
    { 0x1FA7, { 0x1F6F, 0x0399, 0x0000 } }, { 0x1FA8, { 0x1F68, 0x0399, 0x0000 } },
    { 0x1FA9, { 0x1F69, 0x0399, 0x0000 } }, { 0x1FAA, { 0x1F6A, 0x0399, 0x0000 } },
    { 0x1FAB, { 0x1F6B, 0x0399, 0x0000 } }, { 0x1FAC, { 0x1F6C, 0x0399, 0x0000 } },
    { 0x1FAD, { 0x1F6D, 0x0399, 0x0000 } }, { 0x1FAE, { 0x1F6E, 0x0399, 0x0000 } },
    { 0x1FAF, { 0x1F6F, 0x0399, 0x0000 } }, { 0x1FB2, { 0x1FBA, 0x0399, 0x0000 } },
    { 0x1FB3, { 0x0391, 0x0399, 0x0000 } }, { 0x1FB4, { 0x0386, 0x0399, 0x0000 } },
    { 0x1FB6, { 0x0391, 0x0342, 0x0000 } }, { 0x1FB7, { 0x0391, 0x0342, 0x0399 } },
    { 0x1FBC, { 0x0391, 0x0399, 0x0000 } }, { 0x1FC2, { 0x1FCA, 0x0399, 0x0000 } },
    { 0x1FC3, { 0x0397, 0x0399, 0x0000 } }, { 0x1FC4, { 0x0389, 0x0399, 0x0000 } },
    { 0x1FC6, { 0x0397, 0x0342, 0x0000 } }, { 0x1FC7, { 0x0397, 0x0342, 0x0399 } },
    { 0x1FCC, { 0x0397, 0x0399, 0x0000 } }, { 0x1FD2, { 0x0399, 0x0308, 0x0300 } },
    { 0x1FD3, { 0x0399, 0x0308, 0x0301 } }, { 0x1FD6, { 0x0399, 0x0342, 0x0000 } },
    { 0x1FD7, { 0x0399, 0x0308, 0x0342 } }, { 0x1FE2, { 0x03A5, 0x0308, 0x0300 } },
    { 0x1FE3, { 0x03A5, 0x0308, 0x0301 } }, { 0x1FE4, { 0x03A1, 0x0313, 0x0000 } },
    { 0x1FE6, { 0x03A5, 0x0342, 0x0000 } }, { 0x1FE7, { 0x03A5, 0x0308, 0x0342 } },
    { 0x1FF2, { 0x1FFA, 0x0399, 0x0000 } }, { 0x1FF3, { 0x03A9, 0x0399, 0x0000 } },
    { 0x1FF4, { 0x038F, 0x0399, 0x0000 } }, { 0x1FF6, { 0x03A9, 0x0342, 0x0000 } },
    { 0x1FF7, { 0x03A9, 0x0342, 0x0399 } }, { 0x1FFC, { 0x03A9, 0x0399, 0x0000 } },
    { 0xFB00, { 0x0046, 0x0046, 0x0000 } }, { 0xFB01, { 0x0046, 0x0049, 0x0000 } },
    { 0xFB02, { 0x0046, 0x004C, 0x0000 } }, { 0xFB03, { 0x0046, 0x0046, 0x0049 } },
    { 0xFB04, { 0x0046, 0x0046, 0x004C } }, { 0xFB05, { 0x0053, 0x0054, 0x0000 } },
    { 0xFB06, { 0x0053, 0x0054, 0x0000 } }, { 0xFB13, { 0x0544, 0x0546, 0x0000 } },
    { 0xFB14, { 0x0544, 0x0535, 0x0000 } }, { 0xFB15, { 0x0544, 0x053B, 0x0000 } },
    { 0xFB16, { 0x054E, 0x0546, 0x0000 } }, { 0xFB17, { 0x0544, 0x053D, 0x0000 } },
};
static const special_case special_title[] = {
    { 0x00DF, { 0x0053, 0x0073, 0x0000 } }, { 0x0149, { 0x02BC, 0x004E, 0x0000 } },
    { 0x01F0, { 0x004A, 0x030C, 0x0000 } }, { 0x0390, { 0x0399, 0x0308, 0x0301 } },
    { 0x03B0, { 0x03A5, 0x0308, 0x0301 } }, { 0x0587, { 0x0535, 0x0582, 0x0000 } },
    { 0x1E96, { 0x0048, 0x0331, 0x0000 } }, { 0x1E97, { 0x0054, 0x0308, 0x0000 } },
    { 0x1E98, { 0x0057, 0x030A, 0x0000 } }, { 0x1E99, { 0x0059, 0x030A, 0x0000 } },
    { 0x1E9A, { 0x0041, 0x02BE, 0x0000 } }, { 0x1F50, { 0x03A5, 0x0313, 0x0000 } },
    { 0x1F52, { 0x03A5, 0x0313, 0x0300 } }, { 0x1F54, { 0x03A5, 0x0313, 0x0301 } },
    { 0x1F56, { 0x03A5, 0x0313, 0x0342 } }, { 0x1FB2, { 0x1FBA, 0x0345, 0x0000 } },
    { 0x1FB4, { 0x0386, 0x0345, 0x0000 } }, { 0x1FB6, { 0x0391, 0x0342, 0x0000 } },
    { 0x1FB7, { 0x0391, 0x0342, 0x0345 } }, { 0x1FC2, { 0x1FCA, 0x0345, 0x0000 } },
    { 0x1FC4, { 0x0389, 0x0345, 0x0000 } }, { 0x1FC6, { 0x0397, 0x0342, 0x0000 } },
    { 0x1FC7, { 0x0397, 0x0342, 0x0345 } }, { 0x1FD2, { 0x0399, 0x0308, 0x0300 } },
    { 0x1FD3, { 0x0399, 0x0308, 0x0301 } }, { 0x1FD6, { 0x0399, 0x0342, 0x0000 } },
    { 0x1FD7, { 0x0399, 0x0308, 0x0342 } }, { 0x1FE2, { 0x03A5, 0x0308, 0x0300 } },
    { 0x1FE3, { 0x03A5, 0x0308, 0x0301 } }, { 0x1FE4, { 0x03A1, 0x0313, 0x0000 } },
    { 0x1FE6, { 0x03A5, 0x0342, 0x0000 } }, { 0x1FE7, { 0x03A5, 0x0308, 0x0342 } },
    { 0x1FF2, { 0x1FFA, 0x0345, 0x0000 } }, { 0x1FF4, { 0x038F, 0x0345, 0x0000 } },
    { 0x1FF6, { 0x03A9, 0x0342, 0x0000 } }, { 0x1FF7, { 0x03A9, 0x0342, 0x0345 } },
    { 0xFB00, { 0x0046, 0x0066, 0x0000 } }, { 0xFB01, { 0x0046, 0x0069, 0x0000 } },
    { 0xFB02, { 0x0046, 0x006C, 0x0000 } }, { 0xFB03, { 0x0046, 0x0066, 0x0069 } },
    { 0xFB04, { 0x0046, 0x0066, 0x006C } }, { 0xFB05, { 0x0053, 0x0074, 0x0000 } },
    { 0xFB06, { 0x0053, 0x0074, 0x0000 } }, { 0xFB13, { 0x0544, 0x0576, 0x0000 } },
    { 0xFB14, { 0x0544, 0x0565, 0x0000 } }, { 0xFB15, { 0x0544, 0x056B, 0x0000 } },
    { 0xFB16, { 0x054E, 0x0576, 0x0000 } }, { 0xFB17, { 0x0544, 0x056D, 0x0000 } },
};
/* clang-format on */

uint32_t tkc_j_char(tinkc_str s, size_t *at)
{
    const unsigned char *p = (const unsigned char *)s.data + *at;
    if (p[0] < 0x80) {
        *at += 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *at += 2;
        return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    }
    if (p[0] < 0xF0) {
        *at += 3;
        return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    }
    *at += 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 |
           (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

size_t tkc_j_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

bool tkc_j_valid_utf8(tinkc_str s)
{
    const unsigned char *p = (const unsigned char *)s.data;
    size_t i = 0;
    while (i < s.len) {
        if (p[i] < 0x80) {
            i++;
            continue;
        }
        size_t n = p[i] >= 0xC2 && p[i] < 0xE0   ? 2
                   : (p[i] & 0xF0) == 0xE0       ? 3
                   : p[i] >= 0xF0 && p[i] < 0xF5 ? 4
                                                 : 0;
        if (n == 0 || s.len - i < n)
            return false;
        for (size_t k = 1; k < n; k++)
            if ((p[i + k] & 0xC0) != 0x80)
                return false;
        size_t next = i;
        uint32_t c = tkc_j_char(s, &next);
        if ((n == 3 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) ||
            (n == 4 && (c < 0x10000 || c > 0x10FFFF)))
            return false;
        i = next;
    }
    return true;
}

bool tkc_j_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

bool tkc_j_is_printable(uint32_t c)
{
    if (c < 0x7F)
        return c >= 0x20;
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

/* Characters with Numeric_Type Digit that are not decimal digits. */
static bool is_other_digit(uint32_t c)
{
    static const uint32_t ranges[][2] = {
        { 0xB2, 0xB3 },       { 0xB9, 0xB9 },       { 0x1369, 0x1371 },   { 0x19DA, 0x19DA },
        { 0x2070, 0x2070 },   { 0x2074, 0x2079 },   { 0x2080, 0x2089 },   { 0x2460, 0x2468 },
        { 0x2474, 0x247C },   { 0x2488, 0x2490 },   { 0x24EA, 0x24EA },   { 0x24F5, 0x24FD },
        { 0x24FF, 0x24FF },   { 0x2776, 0x277E },   { 0x2780, 0x2788 },   { 0x278A, 0x2792 },
        { 0x10A40, 0x10A43 }, { 0x10E60, 0x10E68 }, { 0x11052, 0x1105A }, { 0x1F100, 0x1F10A },
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return true;
    return false;
}

static bool is_letter(utf8proc_category_t k)
{
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_LO;
}

/* Ideographs that are numbers. */
static bool is_number_word(uint32_t c)
{
    static const uint32_t words[] = {
        0x3405,  0x3483,  0x382A,  0x3B4D,  0x4E00,  0x4E03,  0x4E07,  0x4E09,  0x4E5D,
        0x4E8C,  0x4E94,  0x4E96,  0x4EBF,  0x4EC0,  0x4EDF,  0x4EE8,  0x4F0D,  0x4F70,
        0x5104,  0x5146,  0x5169,  0x516B,  0x516D,  0x5341,  0x5343,  0x5344,  0x5345,
        0x534C,  0x53C1,  0x53C2,  0x53C3,  0x53C4,  0x56DB,  0x58F1,  0x58F9,  0x5E7A,
        0x5EFE,  0x5EFF,  0x5F0C,  0x5F0D,  0x5F0E,  0x5F10,  0x62FE,  0x634C,  0x67D2,
        0x6F06,  0x7396,  0x767E,  0x8086,  0x842C,  0x8CAE,  0x8CB3,  0x8D30,  0x9621,
        0x9646,  0x964C,  0x9678,  0x96F6,  0xF96B,  0xF973,  0xF978,  0xF9B2,  0xF9D1,
        0xF9D3,  0xF9FD,  0x20001, 0x20064, 0x200E2, 0x20121, 0x2092A, 0x20983, 0x2098C,
        0x2099C, 0x20AEA, 0x20AFD, 0x20B19, 0x22390, 0x22998, 0x23B1B, 0x2626D, 0x2F890,
    };
    size_t n = sizeof words / sizeof *words;
    for (size_t i = 0; c >= words[0] && i < n && words[i] <= c; i++)
        if (words[i] == c)
            return true;
    return false;
}

int tkc_j_decimal(uint32_t c)
{
    /* digits come in rows of ten; adjacent rows begin at a multiple of ten */
    if (category(c) != UTF8PROC_CATEGORY_ND)
        return -1;
    if (c >= 0x1D7CE && c <= 0x1D7FF)
        return (int)((c - 0x1D7CE) % 10);
    uint32_t first = c;
    while (c - first < 9 && category(first - 1) == UTF8PROC_CATEGORY_ND)
        first--;
    return (int)(c - first);
}

bool tkc_j_is(uint32_t c, int what)
{
    utf8proc_category_t k = category(c);
    bool lower = k == UTF8PROC_CATEGORY_LL || (c >= 0x80 && utf8proc_islower((utf8proc_int32_t)c));
    bool upper = k == UTF8PROC_CATEGORY_LU || (c >= 0x80 && utf8proc_isupper((utf8proc_int32_t)c));
    switch (what) {
    case TKC_JCHAR_ALPHA:
        return is_letter(k);
    case TKC_JCHAR_DECIMAL:
        return k == UTF8PROC_CATEGORY_ND;
    case TKC_JCHAR_DIGIT:
        return k == UTF8PROC_CATEGORY_ND || is_other_digit(c);
    case TKC_JCHAR_NUMERIC:
        return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL ||
               k == UTF8PROC_CATEGORY_NO || is_other_digit(c) || is_number_word(c);
    case TKC_JCHAR_UPPER:
        return upper && k != UTF8PROC_CATEGORY_LT;
    case TKC_JCHAR_LOWER:
        return lower;
    case TKC_JCHAR_TITLE:
        return k == UTF8PROC_CATEGORY_LT;
    default:
        return lower || upper || k == UTF8PROC_CATEGORY_LT;
    }
}

static const special_case *find_special(const special_case *table, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n; i++)
        if (table[i].from == c)
            return &table[i];
    return NULL;
}

static bool put_char(tkc_jev *ev, uint32_t c)
{
    char text[4];
    return tkc_j_put(ev, text, tkc_j_encode(c, text));
}

static bool put_special(tkc_jev *ev, const special_case *s)
{
    for (size_t i = 0; i < 3 && s->to[i]; i++)
        if (!put_char(ev, s->to[i]))
            return false;
    return true;
}

static bool put_upper(tkc_jev *ev, uint32_t c)
{
    if (c < 0x80)
        return put_char(ev, c >= 'a' && c <= 'z' ? c - 32 : c);
    const special_case *s =
        find_special(special_upper, sizeof special_upper / sizeof *special_upper, c);
    return s ? put_special(ev, s) : put_char(ev, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
}

static bool put_title(tkc_jev *ev, uint32_t c)
{
    if (c < 0x80)
        return put_upper(ev, c);
    const special_case *s =
        find_special(special_title, sizeof special_title / sizeof *special_title, c);
    return s ? put_special(ev, s) : put_char(ev, (uint32_t)utf8proc_totitle((utf8proc_int32_t)c));
}

/* Greek sigma is written differently at the end of a word. */
static bool is_final_sigma(tinkc_str s, size_t at, size_t next)
{
    bool before = false;
    for (size_t i = 0; i < at;) {
        uint32_t c = tkc_j_char(s, &i);
        if (tkc_j_is(c, TKC_JCHAR_CASED))
            before = true;
        else if (category(c) != UTF8PROC_CATEGORY_MN && c != '\'' && c != '.' && c != ':')
            before = false;
    }
    while (before && next < s.len) {
        uint32_t c = tkc_j_char(s, &next);
        if (tkc_j_is(c, TKC_JCHAR_CASED))
            return false;
        if (category(c) != UTF8PROC_CATEGORY_MN && c != '\'' && c != '.' && c != ':')
            break;
    }
    return before;
}

static bool put_lower(tkc_jev *ev, tinkc_str s, size_t at, size_t next, uint32_t c)
{
    if (c < 0x80)
        return put_char(ev, c >= 'A' && c <= 'Z' ? c + 32 : c);
    if (c == 0x130)
        return put_char(ev, 'i') && put_char(ev, 0x307);
    if (c == 0x3A3)
        return tkc_j_charge(ev, s.len / 16) &&
               put_char(ev, is_final_sigma(s, at, next) ? 0x3C2 : 0x3C3);
    return put_char(ev, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

bool tkc_j_write_case(tkc_jev *ev, tinkc_str s, int how)
{
    bool in_word = false;
    if (!tkc_j_charge(ev, s.len / 8))
        return false;
    for (size_t i = 0; i < s.len;) {
        size_t at = i;
        uint32_t c = tkc_j_char(s, &i);
        bool ok;
        bool cased =
            how >= TKC_JCASE_TITLE && how <= TKC_JCASE_SWAP && tkc_j_is(c, TKC_JCHAR_CASED);
        if (how == TKC_JCASE_UPPER || (how == TKC_JCASE_SWAP && tkc_j_is(c, TKC_JCHAR_LOWER)))
            ok = put_upper(ev, c);
        else if ((how == TKC_JCASE_TITLE && !in_word) || (how == TKC_JCASE_CAPITAL && at == 0))
            ok = put_title(ev, c);
        else if (how == TKC_JCASE_SWAP && !tkc_j_is(c, TKC_JCHAR_UPPER))
            ok = put_char(ev, c);
        else
            ok = put_lower(ev, s, at, i, c);
        if (!ok)
            return false;
        in_word = cased;
    }
    return true;
}

tkc_jv tkc_jv_case(tkc_jev *ev, tkc_jv s, int how)
{
    size_t mark = ev->out.len;
    if (!tkc_j_write_case(ev, tkc_jv_text(s), how))
        return tkc_jv_fail;
    tkc_jv v = tkc_jv_take(ev, mark);
    v.flag = s.flag;
    return v;
}

static bool in_set(uint32_t c, const tinkc_str *chars)
{
    if (!chars)
        return tkc_j_is_space(c);
    for (size_t i = 0; i < chars->len;)
        if (tkc_j_char(*chars, &i) == c)
            return true;
    return false;
}

tinkc_str tkc_j_strip(tinkc_str s, const tinkc_str *chars, bool left, bool right)
{
    while (left && s.len) {
        size_t n = 0;
        if (!in_set(tkc_j_char(s, &n), chars))
            break;
        s.data += n;
        s.len -= n;
    }
    while (right && s.len) {
        size_t begin = s.len - 1;
        while (begin > 0 && ((unsigned char)s.data[begin] & 0xC0) == 0x80)
            begin--;
        size_t n = begin;
        if (!in_set(tkc_j_char(s, &n), chars))
            break;
        s.len = begin;
    }
    return s;
}

size_t tkc_jstr_chars(tkc_jstr *s)
{
    if (s->chars != SIZE_MAX)
        return s->chars;
    size_t n = 0;
    for (size_t i = 0; i < s->len; i++)
        n += ((unsigned char)s->data[i] & 0xC0) != 0x80;
    s->chars = n;
    return n;
}

size_t tkc_j_place(tkc_jstr *s, size_t n)
{
    if (tkc_jstr_chars(s) == s->len)
        return n < s->len ? n : s->len;
    size_t i = 0;
    while (n > 0 && i < s->len) {
        i++;
        while (i < s->len && ((unsigned char)s->data[i] & 0xC0) == 0x80)
            i++;
        n--;
    }
    return i;
}
