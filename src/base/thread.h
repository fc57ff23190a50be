/* Threads of our own, to which no signal of the program is ever delivered. */
#ifndef HF_BASE_THREAD_H
#define HF_BASE_THREAD_H

#include <pthread.h>

/* As pthread_create(): 0 or an errno. */
int hf_thread_start(pthread_t *ret, void *(*thread_main)(void *), void *arg);

#endif
