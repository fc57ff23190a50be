#include "calendar.h"

#include <stdbool.h>

enum {
    YEARS_PER_ERA = 400, /* after which the calendar repeats */
    DAYS_PER_ERA = 146097,
    EPOCH = 719468 /* 1970-01-01, counted from 0000-03-01 */
};

int64_t hf_floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* A year begins with March here: then the odd day of a leap year comes last. */
int64_t hf_days_of(struct hf_date date)
{
    int64_t year = date.year - (date.month <= 2), era = hf_floor_div(year, YEARS_PER_ERA);
    int64_t of_era = year - era * YEARS_PER_ERA, month = (date.month + 9) % 12;
    int64_t of_year = (153 * month + 2) / 5 + date.day - 1;
    return era * DAYS_PER_ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH;
}

struct hf_date hf_date_of(int64_t days)
{
    int64_t era = hf_floor_div(days + EPOCH, DAYS_PER_ERA);
    int64_t day = days + EPOCH - era * DAYS_PER_ERA;
    int64_t year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    int64_t of_year = day - (365 * year + year / 4 - year / 100);
    int64_t month = (5 * of_year + 2) / 153;
    return (struct hf_date){.year = era * YEARS_PER_ERA + year + (month >= 10),
                            .month = (int)(month < 10 ? month + 3 : month - 9),
                            .day = (int)(of_year - (153 * month + 2) / 5 + 1)};
}

int hf_days_in_month(int64_t year, int month)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && leap);
}

int hf_weekday_of(int64_t days) { return (int)(days + 4 - 7 * hf_floor_div(days + 4, 7)); }
