/* pb_write.h - protobuf messages into memory, for the files of other people's tools.
 *
 * Running out of memory is remembered: `bad` is set, and everything written after it is dropped.
 */
#ifndef CLI_PB_WRITE_H
#define CLI_PB_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cli_pb {
    unsigned char *data;
    size_t len, cap;
    bool bad;
} cli_pb;

void cli_pb_free(cli_pb *);
void cli_pb_clear(cli_pb *); /* keeps the memory */

void cli_pb_int(cli_pb *, uint32_t field, int64_t value);
void cli_pb_double(cli_pb *, uint32_t field, double value);
void cli_pb_float(cli_pb *, uint32_t field, float value);
void cli_pb_bytes(cli_pb *, uint32_t field, const void *data, size_t len);
void cli_pb_text(cli_pb *, uint32_t field, const char *text); /* NULL = left out */
/* A message in a message; `inner` is emptied. */
void cli_pb_message(cli_pb *, uint32_t field, cli_pb *inner);

void cli_put_le(unsigned char *to, uint64_t value, size_t bytes); /* little-endian */

#endif
