#include "tls.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <unistd.h>

#include "error.h"

#define SSL_SYMBOLS(X)                                                                             \
    X(TLS_server_method)                                                                           \
    X(SSL_CTX_new)                                                                                 \
    X(SSL_CTX_free)                                                                                \
    X(SSL_CTX_ctrl)                                                                                \
    X(SSL_CTX_set_default_passwd_cb)                                                               \
    X(SSL_CTX_use_certificate_chain_file)                                                          \
    X(SSL_CTX_use_PrivateKey_file)                                                                 \
    X(SSL_CTX_check_private_key)                                                                   \
    X(SSL_new)                                                                                     \
    X(SSL_free)                                                                                    \
    X(SSL_set_bio)                                                                                 \
    X(SSL_set_accept_state)                                                                        \
    X(SSL_read)                                                                                    \
    X(SSL_write)                                                                                   \
    X(SSL_shutdown)                                                                                \
    X(SSL_get_error)                                                                               \
    X(BIO_new)                                                                                     \
    X(BIO_free)                                                                                    \
    X(BIO_s_mem)                                                                                   \
    X(BIO_write)                                                                                   \
    X(BIO_ctrl)                                                                                    \
    X(ERR_get_error)                                                                               \
    X(ERR_clear_error)                                                                             \
    X(ERR_error_string_n)

static struct {
#define X(name) __typeof__(name) *name;
    SSL_SYMBOLS(X)
#undef X
} ssl;

/* OpenSSL's own types, under our names. */
struct tls_context;
static SSL_CTX *ctx_of(struct tls_context *context) { return (SSL_CTX *)context; }

struct tls {
    SSL *ssl;
    BIO *in, *out; /* the SSL's */
};

/* ---- the certificate ------------------------------------------------------------------------ */

static int load(struct hf_error *err)
{
    void *library = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return hf_fail(err, HF_UNSUPPORTED, "TLS needs OpenSSL 3 (Debian: libssl3): %s", dlerror());
#define X(name)                                                                                    \
    if (!(ssl.name = (__typeof__(name) *)dlsym(library, #name)))                                   \
        return hf_fail(err, HF_UNSUPPORTED, "OpenSSL has no " #name "; install a newer one");
    SSL_SYMBOLS(X)
#undef X
    return 0;
}

static int fail(struct hf_error *err, const char *what, const char *path)
{
    char why[200] = "";
    ssl.ERR_error_string_n(ssl.ERR_get_error(), why, sizeof why);
    return hf_fail(err, HF_INVALID, "%s %s: %s", what, path, why);
}

/* A service has nobody to ask. */
static int no_password(char *to, int size, int writing, void *arg)
{
    (void)to, (void)size, (void)writing, (void)arg;
    return -1;
}

static int use_files(SSL_CTX *ctx, const char *cert, const char *key, struct hf_error *err)
{
    const char *const files[] = {cert, key};
    for (size_t i = 0; i < 2; i++)
        if (access(files[i], R_OK) < 0)
            return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't read %s", files[i]);
    if (ssl.SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        return fail(err, "no certificate that can be used is in", cert);
    /* A key of another kind than the certificate's is only found by the second look. */
    if (ssl.SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1 ||
        ssl.SSL_CTX_check_private_key(ctx) != 1)
        return fail(err, "do --tls-cert and --tls-key belong together? There is no such key in",
                    key);
    return 0;
}

int tls_open(const char *cert, const char *key, struct tls_context **ret, struct hf_error *err)
{
    int r = load(err);
    if (r < 0)
        return r;
    SSL_CTX *ctx = ssl.SSL_CTX_new(ssl.TLS_server_method());
    if (!ctx)
        return hf_fail(err, HF_NOMEM, "out of memory");
    ssl.SSL_CTX_ctrl(ctx, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, NULL);
    ssl.SSL_CTX_ctrl(ctx, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS, NULL);
    ssl.SSL_CTX_set_default_passwd_cb(ctx, no_password);
    r = use_files(ctx, cert, key, err);
    if (r < 0) {
        ssl.SSL_CTX_free(ctx);
        return r;
    }
    *ret = (struct tls_context *)ctx;
    return 0;
}

void tls_close(struct tls_context *context)
{
    if (context)
        ssl.SSL_CTX_free(ctx_of(context));
}

/* ---- one connection ------------------------------------------------------------------------- */

struct tls *tls_new(struct tls_context *context)
{
    struct tls *tls = calloc(1, sizeof *tls);
    if (!tls)
        return NULL;
    tls->ssl = ssl.SSL_new(ctx_of(context));
    tls->in = ssl.BIO_new(ssl.BIO_s_mem());
    tls->out = ssl.BIO_new(ssl.BIO_s_mem());
    if (!tls->ssl || !tls->in || !tls->out) {
        ssl.BIO_free(tls->in);
        ssl.BIO_free(tls->out);
        ssl.SSL_free(tls->ssl);
        free(tls);
        return NULL;
    }
    ssl.SSL_set_bio(tls->ssl, tls->in, tls->out);
    ssl.SSL_set_accept_state(tls->ssl);
    return tls;
}

void tls_free(struct tls *tls)
{
    if (!tls)
        return;
    ssl.SSL_free(tls->ssl); /* and its BIOs */
    free(tls);
}

bool tls_take(struct tls *tls, const char *bytes, size_t n)
{
    return n <= INT_MAX && ssl.BIO_write(tls->in, bytes, (int)n) == (int)n;
}

ssize_t tls_read(struct tls *tls, char *to, size_t size)
{
    ssl.ERR_clear_error();
    int n = ssl.SSL_read(tls->ssl, to, size < INT_MAX ? (int)size : INT_MAX);
    if (n > 0)
        return n;
    return ssl.SSL_get_error(tls->ssl, n) == SSL_ERROR_WANT_READ ? 0 : -1;
}

bool tls_write(struct tls *tls, const char *text, size_t n)
{
    ssl.ERR_clear_error();
    return n <= INT_MAX && (!n || ssl.SSL_write(tls->ssl, text, (int)n) == (int)n);
}

void tls_end(struct tls *tls)
{
    ssl.ERR_clear_error();
    ssl.SSL_shutdown(tls->ssl);
}

size_t tls_give(struct tls *tls, char **ret)
{
    long n = ssl.BIO_ctrl(tls->out, BIO_CTRL_INFO, 0, ret);
    return n > 0 ? (size_t)n : 0;
}

void tls_given(struct tls *tls) { ssl.BIO_ctrl(tls->out, BIO_CTRL_RESET, 0, NULL); }
