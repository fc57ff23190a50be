/* cmocka, with the headers that it needs before it. */
#ifndef HF_TESTS_CHECK_H
#define HF_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* 64-bit numbers with their sign, as assert_int_equal would show them unsigned. */
#define assert_ms(a, b) assert_true((int64_t)(a) == (int64_t)(b))

#endif
