/*
 * TLS as a filter between a socket's bytes and plain ones; it touches no socket itself. OpenSSL is
 * loaded when a certificate is given, so that nobody else pays for it.
 *
 *     tls_take(tls, bytes, n);        // what was received
 *     n = tls_read(tls, to, size);    // what it says
 *     tls_write(tls, text, n);        // what is to be said
 *     tls_give(tls, &bytes);          // what is to be sent, now and after each of the above
 */
#ifndef HF_SERVER_TLS_H
#define HF_SERVER_TLS_H

#include <sys/types.h>

#include "holdfast.h"

struct tls_context;
struct tls;

/* Load OpenSSL, the certificate with its chain, and its key. */
int tls_open(const char *cert, const char *key, struct tls_context **ret, struct hf_error *err);
void tls_close(struct tls_context *context);

/* The server's side of one connection; NULL: out of memory. */
struct tls *tls_new(struct tls_context *context);
void tls_free(struct tls *tls);

bool tls_take(struct tls *tls, const char *bytes, size_t n);
/* Plain bytes; 0: more must be received; -1: the other side has ended it, or it is no TLS. */
ssize_t tls_read(struct tls *tls, char *to, size_t size);
bool tls_write(struct tls *tls, const char *text, size_t n);
/* Say that nothing more will be said. */
void tls_end(struct tls *tls);
/* What waits to be sent; tls_given() when it was. */
size_t tls_give(struct tls *tls, char **ret);
void tls_given(struct tls *tls);

#endif
