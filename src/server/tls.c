#include "tls.h"

#include <dlfcn.h>
#include <errno.h>
#include <gnutls/abstract.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

enum { PEM_MAX = 1 << 20, CHAIN_MAX = 16 };

#define GNUTLS_SYMBOLS(X)                                                                          \
    X(gnutls_certificate_allocate_credentials)                                                     \
    X(gnutls_certificate_set_x509_key_mem)                                                         \
    X(gnutls_certificate_free_credentials)                                                         \
    X(gnutls_pcert_list_import_x509_raw)                                                           \
    X(gnutls_pcert_deinit)                                                                         \
    X(gnutls_privkey_init)                                                                         \
    X(gnutls_privkey_import_x509_raw)                                                              \
    X(gnutls_privkey_deinit)                                                                       \
    X(gnutls_strerror)

static struct {
#define X(name) __typeof__(name) *name##_;
    GNUTLS_SYMBOLS(X)
#undef X
} tls;

/* Those that were read before stay: a connection may be using them still. */
struct certificate {
    struct certificate *older;
    struct hf_buf pem; /* certificate and key as they were read */
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned n_chain;
    gnutls_privkey_t key;
};

/* The callback is told of no one's data: there is one service in a process. */
static struct certificate *current;

static int load_library(struct hf_error *err)
{
    void *library = dlopen("libgnutls.so.30", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return hf_fail(err, HF_UNSUPPORTED, "TLS needs libgnutls (Debian: libgnutls30): %s",
                       dlerror());
#define X(name)                                                                                    \
    if (!(tls.name##_ = (__typeof__(name) *)dlsym(library, #name)))                                \
        return hf_fail(err, HF_UNSUPPORTED, "libgnutls has no %s; install a newer one", #name);
    GNUTLS_SYMBOLS(X)
#undef X
    return 0;
}

static int read_file(const char *path, struct hf_buf *ret, struct hf_error *err)
{
    char piece[4096];
    size_t before = ret->len;
    FILE *file = fopen(path, "re");
    if (!file)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't read %s", path);
    for (size_t n; (n = fread(piece, 1, sizeof piece, file)) > 0;)
        hf_buf_add(ret, piece, n);
    explicit_bzero(piece, sizeof piece);
    fclose(file);
    return ret->failed || ret->len == before
               ? hf_fail(err, HF_INVALID, "%s is empty or too large", path)
               : 0;
}

static void certificate_free(struct certificate *c)
{
    for (unsigned i = 0; i < c->n_chain; i++)
        tls.gnutls_pcert_deinit_(&c->chain[i]);
    if (c->key)
        tls.gnutls_privkey_deinit_(c->key);
    if (c->pem.data)
        explicit_bzero(c->pem.data, c->pem.len);
    hf_buf_clear(&c->pem);
    free(c);
}

/* Do they belong together? GnuTLS looks when they are made credentials. */
static int check_pair(const gnutls_datum_t *cert, const gnutls_datum_t *key)
{
    gnutls_certificate_credentials_t credentials;
    int code = tls.gnutls_certificate_allocate_credentials_(&credentials);
    if (code < 0)
        return code;
    code = tls.gnutls_certificate_set_x509_key_mem_(credentials, cert, key, GNUTLS_X509_FMT_PEM);
    tls.gnutls_certificate_free_credentials_(credentials);
    return code;
}

static int parse(struct certificate *c, size_t n_cert, const struct serve_options *opts,
                 struct hf_error *err)
{
    gnutls_datum_t cert = {(unsigned char *)c->pem.data, (unsigned)n_cert};
    gnutls_datum_t key = {cert.data + n_cert, (unsigned)(c->pem.len - n_cert)};
    unsigned n = CHAIN_MAX;
    int code = check_pair(&cert, &key);
    if (code >= 0)
        code = tls.gnutls_pcert_list_import_x509_raw_(c->chain, &n, &cert, GNUTLS_X509_FMT_PEM, 0);
    if (code >= 0) {
        c->n_chain = n;
        code = tls.gnutls_privkey_init_(&c->key);
    }
    if (code >= 0)
        code = tls.gnutls_privkey_import_x509_raw_(c->key, &key, GNUTLS_X509_FMT_PEM, NULL, 0);
    return code >= 0
               ? 0
               : hf_fail(err, HF_INVALID, "%s and %s can't be used: %s; do they belong together?",
                         opts->tls_cert, opts->tls_key, tls.gnutls_strerror_(code));
}

int tls_load(struct server *server, struct hf_error *err)
{
    const struct serve_options *opts = server->opts;
    if (!opts->tls_cert)
        return 0;
    int r = tls.gnutls_strerror_ ? 0 : load_library(err);
    struct certificate *c = r < 0 ? NULL : calloc(1, sizeof *c);
    if (!c)
        return r < 0 ? r : hf_fail(err, HF_NOMEM, "out of memory");
    c->pem.cap = 2 * PEM_MAX;
    r = read_file(opts->tls_cert, &c->pem, err);
    size_t n_cert = c->pem.len;
    if (r >= 0)
        r = read_file(opts->tls_key, &c->pem, err);
    bool same = r >= 0 && current && current->pem.len == c->pem.len &&
                memcmp(current->pem.data, c->pem.data, c->pem.len) == 0;
    if (r >= 0 && !same)
        r = parse(c, n_cert, opts, err);
    if (r < 0 || same) {
        certificate_free(c);
        return r;
    }
    c->older = current;
    current = c;
    return 0;
}

void tls_close(void)
{
    for (struct certificate *c; (c = current);) {
        current = c->older;
        certificate_free(c);
    }
}

static int give(gnutls_session_t session, const gnutls_datum_t *names, int n_names,
                const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **chain,
                unsigned *n_chain, gnutls_privkey_t *key)
{
    (void)session, (void)names, (void)n_names, (void)algorithms, (void)n_algorithms;
    *chain = current->chain;
    *n_chain = current->n_chain;
    *key = current->key;
    return 0;
}

void *tls_callback(void)
{
    gnutls_certificate_retrieve_function2 *callback = give;
    void *pointer;
    memcpy(&pointer, &callback, sizeof pointer);
    return pointer;
}
