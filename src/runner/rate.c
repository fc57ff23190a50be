#include "rate.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

enum { AT_ONCE_US = 100000, RATE_MAX = 10000 };

static int64_t period_us(const char *unit)
{
    static const int64_t second_us = 1000000;
    return strcmp(unit, "/s") == 0   ? second_us
           : strcmp(unit, "/m") == 0 ? 60 * second_us
           : strcmp(unit, "/h") == 0 ? 3600 * second_us
                                     : 0;
}

int hf_rate_parse(const char *text, int64_t *ret_interval_us, struct hf_error *err)
{
    size_t digits = strspn(text, "0123456789");
    long n = digits && digits < 8 ? strtol(text, NULL, 10) : 0;
    int64_t period = period_us(text + digits);
    if (n < 1 || n > RATE_MAX || !period)
        return hf_fail(err, HF_INVALID,
                       "'%.40s' is no rate: expected 1 to %d per second, minute or hour, such as "
                       "10/s, 100/m or 5/h",
                       text, RATE_MAX);
    *ret_interval_us = period / n;
    return 0;
}

size_t hf_pace_room(const struct hf_pace *pace, int64_t now_us)
{
    if (now_us < pace->open_us)
        return 0;
    return pace->interval_us < AT_ONCE_US ? (size_t)(AT_ONCE_US / pace->interval_us) : 1;
}

void hf_pace_spend(struct hf_pace *pace, size_t n, int64_t now_us)
{
    if (n)
        pace->open_us = now_us + (int64_t)n * pace->interval_us;
}
