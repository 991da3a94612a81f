/* The sizes and offsets that src/types.rs has too. Compiles, or does not. */
#include "keeptime_fabric.h"

_Static_assert(sizeof(ktf_id) == 16 && sizeof(ktf_attribute) == 16, "");
_Static_assert(sizeof(ktf_config) == 64 && offsetof(ktf_config, callers) == 43, "");
_Static_assert(offsetof(ktf_config, listen) == 48, "");
_Static_assert(offsetof(ktf_config, networks) == 56, "");
_Static_assert(sizeof(ktf_buffer) == 40 && offsetof(ktf_buffer, closure) == 32, "");
_Static_assert(sizeof(ktf_log) == 32 && offsetof(ktf_log, level) == 24, "");
_Static_assert(sizeof(ktf_match) == 40 && offsetof(ktf_match, from) == 16, "");
_Static_assert(sizeof(ktf_undelivered) == 32 && offsetof(ktf_undelivered, reason) == 24, "");
_Static_assert(sizeof(ktf_event) == 24 && offsetof(ktf_event, id) == 8, "");
_Static_assert(sizeof(ktf_reading) == 24 && offsetof(ktf_reading, by) == 16, "");
_Static_assert(sizeof(ktf_layout) == 16 && offsetof(ktf_layout, adds) == 8, "");
_Static_assert(sizeof(ktf_result) == 4, "results are returned as 32 bits");
