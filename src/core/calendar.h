/* Dates of the Gregorian calendar, as days since 1970-01-01. */
#ifndef HF_CORE_CALENDAR_H
#define HF_CORE_CALENDAR_H

#include <stdint.h>

struct hf_date {
    int64_t year;
    int month, day; /* from 1 */
};

int64_t hf_days_of(struct hf_date date);
struct hf_date hf_date_of(int64_t days);

int hf_days_in_month(int64_t year, int month);

/* 0: Sunday */
int hf_weekday_of(int64_t days);

/* a / b, rounded down; b is positive. */
int64_t hf_floor_div(int64_t a, int64_t b);

#endif
