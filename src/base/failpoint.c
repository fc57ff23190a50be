#include "failpoint.h"

#ifdef HF_FAILPOINTS
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hf_failpoint(enum hf_failpoint which)
{
    static int passed[HF_FAIL_MAX + 1];
    const char *wanted = getenv("HOLDFAST_FAILPOINT");
    int number = 0, time = 1;
    if (!wanted || sscanf(wanted, "%d@%d", &number, &time) < 1 || number != (int)which ||
        ++passed[which] != time)
        return;
    raise(strstr(wanted, ":stop") ? SIGSTOP : SIGKILL); /* this very thread, here and not later */
}
#endif
