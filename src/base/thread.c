#include "thread.h"

#include <signal.h>

int hf_thread_start(pthread_t *ret, void *(*thread_main)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(ret, NULL, thread_main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}
